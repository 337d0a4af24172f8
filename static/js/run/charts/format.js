// Numbers, hours and names as charts show them.

// A point whose value is NaN has null, a missing one undefined.
export const formatShort = (value) => {
  if (value == null) return value === null ? "NaN" : "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
};

// Labels of ticks. Ticks that look the same in the short format get more digits; a log axis has ticks without a label.
export const formatTicks = (ticks) => {
  const labels = ticks.filter((tick) => tick != null).map(formatShort);
  const distinct = new Set(labels).size === labels.length;
  return ticks.map((tick) => (tick == null ? "" : distinct ? formatShort(tick) : String(Number(tick.toPrecision(8)))));
};

export const formatHours = (hours) => {
  if (hours < 1) return `${Math.round(hours * 60)} min`;
  return hours < 100 ? `${Number(hours.toFixed(1))} h` : `${Number((hours / 24).toFixed(1))} d`;
};

const MAX_NAME = 16; // characters of a name at the end of a line

// The names without the words that all of them begin or end with: `gspo-hack-s0`, `gspo-fixed-s0` become `hack`, `fixed`.
export function shortenNames(names) {
  if (names.length < 2) return names.map(cutMiddle);
  const words = names.map((name) => name.split(/(?<=[-_/. ])/));
  const shortest = Math.min(...words.map((own) => own.length));
  const same = (at) => words.every((own) => own.at(at).replace(/[-_/. ]$/, "") === words[0].at(at).replace(/[-_/. ]$/, ""));
  let first = 0, last = 0;
  while (first < shortest - 1 && same(first)) first += 1;
  while (last < shortest - 1 - first && same(-1 - last)) last += 1;
  const short = words.map((own) => own.slice(first, own.length - last).join("").replace(/[-_/. ]+$/, ""));
  const distinct = new Set(short).size === new Set(names).size && short.every(Boolean);
  return (distinct ? short : names).map(cutMiddle);
}

function cutMiddle(name) {
  const half = MAX_NAME / 2;
  return name.length > MAX_NAME + 1 ? `${name.slice(0, half)}…${name.slice(-half)}` : name;
}
