// The data of a chart: lines of runs, metrics and attempts on one axis, smoothed or raw, stacked if they are parts of a sum.
import { shortenNames } from "./format.js";
import { fill, gettext } from "../../common/i18n.js";
import { nameInvisible } from "../../common/invisible.js";

const COLOURS = 8;

// The runs of the page with their curves; the page's own run is first, or the group that contains it. A group of runs has
// `members` and is drawn like a run; `target` is the run whose samples it opens.
export function listRuns(layout, uid) {
  const own = { uid, name: layout.name, colour: layout.colour, curves: layout.curves };
  const holdsOwn = (run) => (run.members ?? []).some((member) => member.uid === uid);
  const all = layout.grouped ? layout.over.toSorted((a, b) => holdsOwn(b) - holdsOwn(a)) : [own, ...layout.over];
  const short = shortenNames(all.map((run) => run.name));
  const name = (run) => (run.members ? fill(gettext("{name}, mean of {count}"), { name: run.name, count: run.members.length }) : run.name);
  const target = (run) => (holdsOwn(run) ? uid : run.members?.[0].uid ?? run.uid);
  return all.map((run, at) => ({ ...run, name: name(run), target: target(run), at, short: short[at] }));
}

// With several runs, a chart of several metrics draws one run: else nobody could tell which line is what.
export const needsSwitch = (chart, runs) => chart.names.length > 1 && runs.length > 1;

// Each line has its values over `x` (steps, or hours on the time axis), its steps, and the number of its colour, 1 to 8: that
// of the run, or one for each metric. `label` is its short name, `title` its full name.
export function buildLines(chart, { runs, axis, one, all }) {
  const several = chart.names.length > 1;
  const shown = needsSwitch(chart, runs) ? [runs.find((run) => run.uid === one) ?? runs[0]] : runs;
  const parts = chart.labels ?? shortenNames(chart.names);
  const lines = shown.flatMap((run) => chart.names.flatMap((name, part) => (run.curves[name] ?? []).map((curve) => {
    const attempt = all && curve.number ? ` #${curve.number}` : "";
    return {
      ...curve, run, name, part, x: axis === "time" ? curve.hours : curve.steps,
      colour: several ? 1 + ((run.colour - 1 + part) % COLOURS) : run.colour,
      label: nameInvisible((several ? parts[part] : run.short) + attempt),
      title: nameInvisible((several ? name : run.name) + attempt),
    };
  })));
  return lines.filter((line) => line.x); // a metric without times has no place on the time axis
}

// `axis` is ascending. `raw` has the values of each line on it, `lines` the smoothed ones (null where a log axis has no place
// for them), undefined where a line has no point.
export function joinLines(lines, { weight, log }) {
  const axis = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const index = new Map(axis.map((x, at) => [x, at]));
  const spread = (line, values) => {
    const out = new Array(axis.length);
    line.x.forEach((x, at) => (out[index.get(x)] = values[at]));
    return out;
  };
  const positive = (values) => (log ? values.map((value) => (value > 0 || value === undefined ? value : null)) : values);
  const raw = lines.map((line) => spread(line, line.values));
  const drawn = weight ? lines.map((line) => spread(line, smoothValues(line.values, weight))) : raw;
  return { axis, raw, faint: weight ? raw.map(positive) : [], lines: drawn.map(positive) };
}

// The mean of the curves of several runs, with the lowest and the highest value where two or more have one.
export function averageCurves(curves) {
  const byStep = new Map();
  for (const { steps, values } of curves)
    steps.forEach((step, at) => values[at] != null && byStep.set(step, [...(byStep.get(step) ?? []), values[at]]));
  const steps = [...byStep.keys()].sort((a, b) => a - b), own = steps.map((step) => byStep.get(step));
  const edge = (choose) => own.map((values) => (values.length > 1 ? choose(...values) : null));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return { ...curves[0], steps, values: own.map(mean), low: edge(Math.min), high: edge(Math.max) };
}

// Parts of a sum lie on each other: positive ones upward from 0, negative ones downward. Each has an outer and an inner edge.
// Each attempt has a stack of its own.
export function stackLines(lines, axis, values) {
  const sums = new Map(); // of an attempt: the height of its stack at each place of the axis, upward and downward
  const outer = [], inner = [];
  lines.forEach((line, n) => {
    const key = [line.run.uid, line.attempt, line.step_kind].join(" ");
    if (!sums.has(key)) sums.set(key, [axis.map(() => 0), axis.map(() => 0)]);
    const [up, down] = sums.get(key), part = fillBetween(axis, values[n]);
    const sumOf = (value) => (value < 0 ? down : up);
    inner.push(part.map((value, at) => (value == null ? undefined : sumOf(value)[at])));
    outer.push(part.map((value, at) => (value == null ? undefined : (sumOf(value)[at] += value))));
  });
  return { outer, inner };
}

// The values with those between two points of the line, which has other steps than the other parts: the server downsamples each
// by itself. Without them a part would be missing there, and the sum would be too small.
function fillBetween(axis, values) {
  const filled = [...values];
  let last = -1; // the place of the point before
  for (let at = 0; at < values.length; at += 1) {
    if (values[at] === undefined) continue;
    if (last >= 0 && values[at] !== null && values[last] !== null) {
      const slope = (values[at] - values[last]) / (axis[at] - axis[last]);
      for (let place = last + 1; place < at; place += 1) filled[place] = values[last] + slope * (axis[place] - axis[last]);
    }
    last = at;
  }
  return filled;
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

// The newest value, null if that is NaN.
export const findLast = (values) => values.findLast((value) => value !== undefined);
