// The y range of the large chart: `` (auto), `fit` (1 to 99 %), `zero`, or numbers `low..high`, of which one may be missing.
// Points outside are listed.
import { gettext } from "../../common/i18n.js";
import { spread, spreadLog } from "./plot.js";

const MIN_FIT = 0.01, MAX_FIT = 0.99;
const MAX_NAMED = 3;

// [low, high], where an open end is null. Null without a number, and if the first is not smaller than the second.
export function parseOpenRange(text) {
  const ends = (text ?? "").split("..").map((part) => (part.trim() === "" ? null : Number(part)));
  const numbers = ends.filter((end) => end !== null);
  if (ends.length !== 2 || !numbers.length || !numbers.every(Number.isFinite)) return null;
  return numbers.length === 2 && numbers[0] >= numbers[1] ? null : ends;
}

export function parseRange(text) {
  const range = parseOpenRange(text);
  return range?.includes(null) ? null : range;
}

// What of the range is not used, as a sentence; empty if all is.
export function findRangeProblem(mode, log) {
  const unused = log && parseOpenRange(mode)?.some((end) => end !== null && end <= 0);
  return unused ? gettext("A logarithmic axis has no numbers from 0 down: this end of the range is not used.") : "";
}

// The given ends, and the automatic range where they are open.
function closeRange([from, to], [low, high], log) {
  const far = (end, by) => (log ? end * 10 ** by : end + by * (Math.abs(end) || 1));
  if (from === null) return [low < to ? low : far(to, -1), to];
  if (to === null) return [from, high > from ? high : far(from, 1)];
  return [from, to];
}

// The drawn values in the x range, as [value, line index, axis index].
function listPoints({ data, first, lines, raw, stacked }, [from, to]) {
  const [axis] = data, points = [];
  lines.forEach((_, n) => {
    const drawn = data[first + n];
    axis.forEach((x, at) => {
      if (x >= from && x <= to && drawn[at] != null && raw[n][at] != null) points.push([stacked ? drawn[at] : raw[n][at], n, at]);
    });
  });
  return points;
}

export function findRange(mode, plotted, xRange) {
  const values = listPoints(plotted, xRange).map(([value]) => value).filter((value) => !plotted.log || value > 0).sort((a, b) => a - b);
  for (const { series } of plotted.bands)
    for (const edge of series) plotted.data[0].forEach((x, at) => {
      const value = plotted.data[edge][at];
      if (x >= xRange[0] && x <= xRange[1] && value != null && mode !== "fit") values.push(value);
    });
  if (!values.length) return plotted.log ? spreadLog() : spread();
  const around = plotted.log ? spreadLog : spread;
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const fixed = parseOpenRange(mode)?.map((end) => (plotted.log && end <= 0 ? null : end));
  if (fixed?.some((end) => end !== null)) return closeRange(fixed, around(null, low, high), plotted.log);
  if (mode === "fit") {
    const at = (share) => values[Math.round(share * (values.length - 1))];
    return around(null, at(MIN_FIT), at(MAX_FIT));
  }
  if (plotted.stacked || (mode === "zero" && !plotted.log)) {
    const [bottom, top] = around(null, Math.min(0, low), Math.max(0, high));
    return [low >= 0 ? 0 : bottom, high <= 0 ? 0 : top];
  }
  return around(null, low, high);
}

// {count, named}: the points that the y range does not show, the farthest first.
export function findOutside(plotted, xRange, [low, high]) {
  const points = listPoints(plotted, xRange).filter(([value]) => value < low || value > high);
  const distance = ([value]) => Math.max(low - value, value - high);
  const named = points.toSorted((a, b) => distance(b) - distance(a)).slice(0, MAX_NAMED);
  return {
    count: points.length,
    named: named.map(([value, n, at]) => ({ line: plotted.lines[n], x: plotted.data[0][at], value })),
  };
}
