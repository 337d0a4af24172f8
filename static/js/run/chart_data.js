// What a chart draws: lines of runs, metrics and attempts on one axis, smoothed or raw.

// The page's layout with every run's curves; the run itself is the first. `again` counts the runs before one that have its colour.
export function runsOf(layout, uid) {
  const all = [{ uid, colour: layout.colour, curves: layout.curves }, ...layout.over];
  return all.map((run, at) => ({ ...run, at, again: all.slice(0, at).filter((other) => other.colour === run.colour).length }));
}

// Each line has its values over `x` (steps, or hours where the axis is time) and knows its steps.
export function linesOf(chart, runs, axis) {
  return runs.flatMap((run) =>
    chart.names.flatMap((name, part) =>
      (run.curves[name] ?? []).map((curve) => ({ run, name, part, number: curve.number, steps: curve.steps, x: axis === "time" ? curve.hours : curve.steps, values: curve.values })),
    ),
  );
}

// uPlot's data: one ascending axis, and per line its values there; undefined where a line has no point.
export function joined(lines, { weight, log, faint }) {
  const axis = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const place = new Map(axis.map((x, at) => [x, at]));
  const spread = (line, values) => {
    const out = new Array(axis.length);
    line.x.forEach((x, at) => (out[place.get(x)] = log && !(values[at] > 0) ? null : values[at]));
    return out;
  };
  const raw = faint ? lines.map((line) => spread(line, line.values)) : [];
  return [axis, ...raw, ...lines.map((line) => spread(line, smoothed(line.values, weight)))];
}

// Exponential moving average without a bias to its start; gaps stay gaps.
export function smoothed(values, weight) {
  if (!weight) return values;
  let mean, share = 1;
  return values.map((value) => {
    if (value == null) return value;
    mean = mean === undefined ? value * (1 - weight) : mean * weight + value * (1 - weight);
    share *= weight;
    return mean / (1 - share);
  });
}

// The place of a line's point that is nearest to x.
export function nearest(line, x) {
  let low = 0, high = line.x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.x[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - line.x[low - 1] <= line.x[low] - x ? low - 1 : low;
}

export const short = (value) => {
  if (value == null) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
};

// Ticks that lie closer together than `short` can say get the digits that tell them apart; a log axis has empty ones.
export const ticked = (ticks) => {
  const told = ticks.filter((tick) => tick != null).map(short);
  const clear = new Set(told).size === told.length;
  return ticks.map((tick) => (tick == null ? "" : clear ? short(tick) : String(Number(tick.toPrecision(8)))));
};

export const moment = (hours) => {
  if (hours < 1) return `${Math.round(hours * 60)} min`;
  return hours < 100 ? `${Number(hours.toFixed(1))} h` : `${Number((hours / 24).toFixed(1))} d`;
};
