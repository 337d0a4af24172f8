// The data of a chart: lines of runs, metrics and attempts on one axis, smoothed or raw.

// The runs of the page with their curves; the page's own run is first. `again` counts earlier runs with the same colour.
export function listRuns(layout, uid) {
  const all = [{ uid, colour: layout.colour, curves: layout.curves }, ...layout.over];
  const sameColour = (run, at) => all.slice(0, at).filter((other) => other.colour === run.colour).length;
  return all.map((run, at) => ({ ...run, at, again: sameColour(run, at) }));
}

// Each line has its values over `x` (steps, or hours on the time axis) and its steps.
export function buildLines(chart, runs, axis) {
  const line = (run, name, part, { number, steps, hours, values }) => ({
    run, name, part, number, steps, values, x: axis === "time" ? hours : steps,
  });
  return runs.flatMap((run) =>
    chart.names.flatMap((name, part) => (run.curves[name] ?? []).map((curve) => line(run, name, part, curve))),
  );
}

// The data format of uPlot: one ascending axis and the values of each line on it; undefined if a line has no point there.
export function joinLines(lines, { weight, log, faint }) {
  const axis = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const index = new Map(axis.map((x, at) => [x, at]));
  const spread = (line, values) => {
    const out = new Array(axis.length);
    line.x.forEach((x, at) => (out[index.get(x)] = log && !(values[at] > 0) ? null : values[at]));
    return out;
  };
  const raw = faint ? lines.map((line) => spread(line, line.values)) : [];
  return [axis, ...raw, ...lines.map((line) => spread(line, smoothValues(line.values, weight)))];
}

// Exponential moving average without start bias; gaps remain gaps.
export function smoothValues(values, weight) {
  if (!weight) return values;
  let mean, share = 1;
  return values.map((value) => {
    if (value == null) return value;
    mean = mean === undefined ? value * (1 - weight) : mean * weight + value * (1 - weight);
    share *= weight;
    return mean / (1 - share);
  });
}

// The index of the point of a line that is nearest to x.
export function findNearest(line, x) {
  let low = 0, high = line.x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.x[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - line.x[low - 1] <= line.x[low] - x ? low - 1 : low;
}

export const formatShort = (value) => {
  if (value == null) return "–";
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
