// The y range of the large chart: `` (auto), `fit` (1 to 99 %), `zero`, or two numbers `low..high`. Points outside are listed.
import { spread, spreadLog } from "./plot.js";

const MIN_FIT = 0.01, MAX_FIT = 0.99;
const MAX_NAMED = 3;

export function parseRange(text) {
  const [low, high] = (text ?? "").split("..").map((part) => (part.trim() === "" ? NaN : Number(part)));
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
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
  for (const { series } of plotted.stacked ? [] : plotted.bands)
    for (const edge of series) plotted.data[0].forEach((x, at) => {
      const value = plotted.data[edge][at];
      if (x >= xRange[0] && x <= xRange[1] && value != null && mode !== "fit") values.push(value);
    });
  if (!values.length) return plotted.log ? spreadLog() : spread();
  const around = plotted.log ? spreadLog : spread;
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const fixed = parseRange(mode);
  if (fixed && (!plotted.log || fixed[0] > 0)) return fixed;
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
