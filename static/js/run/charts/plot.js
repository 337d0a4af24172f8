// What a small chart and the large one share: the data of a uPlot, its series, axes and ranges.
import { joinLines, stackLines } from "./data.js";
import { LANE, drawTicks } from "./events.js";
import { formatHours, formatTicks } from "./format.js";
import { FONT, drawLabels, measureLabels } from "./labels.js";
import { fill, ngettext } from "../../common/i18n.js";

const DASHES = [[], [5, 3], [2, 2], [9, 3, 2, 3]];
const FILL = 0.16, STACK_FILL = 0.45; // opacity
const COLOURS = 8;
const MAX_LINEAR_TICKS = 5, MAX_DECADES = 5, FEW_DECADES = 1.5;
const MIN_SELECTION = 3; // px: less is a click

// {data, raw, first, bands, lines, faint, log, unplaced}: `raw` are the values to show; the series of the lines begin at
// `first`. `unplaced` is the number of values that have no place on the log axis.
export function buildPlotData(chart, lines, page) {
  const stacked = chart.kind === "stack" && lines.length > 1;
  const log = page.log && !stacked && lines.some((line) => line.values.some((value) => value > 0));
  const { axis, raw, faint, lines: drawn } = joinLines(lines, { weight: page.weight, log });
  const first = 1 + (stacked ? 0 : faint.length);
  const unplaced = log ? raw.flat().filter((value) => value != null && value <= 0).length : 0;
  const shape = { lines, log, faint: !stacked && faint.length > 0, first, raw, stacked, unplaced };
  if (stacked) {
    const { outer, inner } = stackLines(lines, axis, drawn);
    const bands = lines.flatMap((line, n) => { // uPlot fills where the first series is above the second: both signs
      const edges = [first + n, first + lines.length + n];
      return [edges, edges.toReversed()].map((series) => ({ series, line, opacity: STACK_FILL }));
    });
    return { ...shape, data: [axis, ...outer, ...inner], bands, hidden: inner.length };
  }
  const extra = [], bands = [];
  lines.forEach((line, n) => {
    if (!line.low) return;
    const edges = joinLines([{ ...line, values: line.high }, { ...line, values: line.low }], { weight: 0, log }).lines;
    const index = new Map(line.x.map((x, at) => [x, at]));
    const place = (edge) => axis.map((x) => (index.has(x) ? edge[index.get(x)] : undefined));
    const start = first + lines.length + extra.length;
    extra.push(...edges.map(place));
    bands.push({ series: [start, start + 1], line: lines[n], opacity: FILL });
  });
  if (chart.kind === "fan") bands.push(...fanBands(lines, first));
  return { ...shape, data: [axis, ...faint, ...drawn, ...extra], bands, hidden: extra.length };
}

// The area between the 10th and the 90th percentile.
function fanBands(lines, first) {
  return lines.flatMap((line, n) => {
    if (!line.name.endsWith("p90")) return [];
    const low = lines.findIndex((other) => other.number === line.number && other.name.endsWith("p10"));
    return low < 0 ? [] : [{ series: [first + n, first + low], line, opacity: FILL }];
  });
}

export const shapeOf = ({ lines, log, faint, stacked, hidden }) =>
  JSON.stringify([
    lines.map((line) => [line.run.uid, line.name, line.number, line.label, line.colour, line.x.length < 2]),
    log, faint, stacked, hidden,
  ]);

export function buildOptions(plotted, page, { width, height, dense = true, scale = 1, yRange, xRange, hooks = {}, cursor = {} }) {
  const { colours } = page;
  const { lines, log, faint } = plotted;
  const font = `${(dense ? 10 : 11) * scale}px Inter Variable, Noto Sans, sans-serif`;
  const labels = FONT.replace("10px", `${(dense ? 10 : 12) * scale}px`);
  const grid = { stroke: colours.hairline, width: 1 };
  const axis = { stroke: colours.muted, grid, ticks: { show: false }, font };
  const named = lines.length > 1 || !dense;
  const isStep = (tick) => Number.isInteger(tick) && tick >= 0; // around the only step 0 is a -1
  const formatSteps = (ticks) => ticks.map((tick) => (isStep(tick) ? tick.toLocaleString("en") : ""));
  const formatX = (_, ticks) => (page.axis === "step" ? formatSteps(ticks) : ticks.map(formatHours));
  const size = (pixels) => pixels * scale;
  const raw = faint ? lines.map((line) => buildSeries(line, page, plotted, true, scale)) : [];
  const invisible = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
  const hidden = Array.from({ length: plotted.hidden }, () => ({ ...invisible }));
  return {
    width: size(width), height: size(height), padding: [size(6), named ? Math.max(18, measureLabels(lines, labels)) : size(18), 0, 0],
    cursor: { points: { size: 5 }, drag: { x: false, y: false }, y: false, ...cursor },
    legend: { show: false },
    scales: {
      x: { time: false, range: xRange ?? (() => page.span()) },
      y: { distr: log ? 3 : 1, range: yRange ?? (log ? spreadLog : spread) },
    },
    axes: [
      { ...axis, size: size(18 + LANE), gap: size(2 + LANE), space: size(46), values: formatX },
      {
        ...axis, size: size(dense ? 44 : 56), gap: size(3), space: size(dense ? 26 : 40), values: (_, ticks) => formatTicks(ticks),
        ...(log && { splits: (_, __, low, high) => splitLog(low, high), filter: (_, ticks) => chooseLabels(ticks) }),
      },
    ],
    series: [{}, ...raw, ...lines.map((line) => buildSeries(line, page, plotted, false, scale)), ...hidden],
    bands: plotted.bands.map(({ series, line, opacity }) => ({ series, fill: fade(colours.lines[line.colour - 1], opacity) })),
    hooks: {
      ...hooks,
      draw: [
        (plot) => drawTicks(plot, page, plotted.lines), // a chart that gets new data changes `plotted`
        (plot) => named && drawLabels(plot, plotted.lines, colours, plotted.first, labels),
        ...(hooks.draw ?? []),
      ],
    },
  };
}

function buildSeries(line, page, { lines }, faint, scale) {
  const isNewer = (other) => other.run === line.run && other.name === line.name && other.number > line.number;
  const older = page.all && lines.some(isNewer);
  return {
    stroke: page.colours.lines[line.colour - 1],
    width: (faint ? 1 : lineWidth()) * (scale > 1 ? 1.5 * scale : 1), alpha: faint ? 0.22 : older ? 0.35 : 1,
    dash: DASHES[Math.floor((line.run.dash ?? line.run.at) / COLOURS) % DASHES.length],
    // A line across NaN, or values that a log axis cannot show, would say that they are between their neighbours.
    spanGaps: false, points: { show: !faint && line.x.length < 2, size: 4, filter: findIsolated },
  };
}

// The points without a neighbour that a line could join them to. Null (all) if the points are shown anyway.
function findIsolated(plot, series, areShown) {
  if (areShown || !plot.data[series].includes(null)) return null;
  const values = plot.data[series].map((value, at) => [value, at]).filter(([value]) => value !== undefined);
  const isGap = (entry) => !entry || entry[0] === null;
  const found = values.filter((entry, n) => !isGap(entry) && isGap(values[n - 1]) && isGap(values[n + 1]));
  return found.length ? found.map(([, at]) => at) : null;
}

// A sentence about the values that the log axis does not show; empty if there are none.
export function describeUnplaced({ unplaced }) {
  const text = ngettext("{count} value of 0 or less is not on the logarithmic axis.",
    "{count} values of 0 or less are not on the logarithmic axis.", unplaced);
  return unplaced ? fill(text, { count: unplaced }) : "";
}

const fade = (colour, opacity) => colour.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);

// Without a GPU, a line of 500 points takes 15 times as long at 1.3 pixels as at 1 pixel.
const lineWidth = () => (devicePixelRatio > 1 ? 1.3 : 1);

// Ends a selection that the user has made by dragging. Returns its x range, or null if that is too narrow.
export function takeSelection(plot) {
  const { left, width } = plot.select;
  const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
  plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  return width > MIN_SELECTION ? range : null;
}

// The y range with a margin above and below. A range close to floating-point precision is widened, and equal values get
// ticks that differ by tenths of them.
export function spread(_, low, high) {
  if (low == null) return [0, 1];
  if (low === 0 && high === 0) return [0, 1]; // such as a share that is 0 at all steps
  const room = Math.max((high - low) * 0.06, Math.abs(high) * (low === high ? 0.1 : 1e-4), 1e-9);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

export function spreadLog(_, low, high) {
  if (low == null) return [0.1, 1];
  const room = Math.max((high / low) ** 0.06, 1.02);
  return [Math.max(low / room, Number.MIN_VALUE), Math.min(high * room, Number.MAX_VALUE)]; // a log axis has no 0
}

// The ticks of a log axis from `low` to `high`; none if `low` is 0 or `high` infinite. uPlot's own need a range that begins with
// a power of 10, else they may never end. Within a factor of 10 the ticks are those of a linear axis.
export function splitLog(low, high) {
  if (!(low > 0 && high < Infinity)) return [];
  const round = (tick) => Number(tick.toPrecision(12));
  if (high / low < 10) {
    const least = (high - low) / MAX_LINEAR_TICKS, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= least);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, n) => round((first + n) * step));
  }
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (let digit = 1; digit < 10; digit += 1) ticks.push(round(digit * 10 ** power));
  return ticks.filter((tick) => tick >= low && tick <= high);
}

// The ticks that have a label: 1, 2 and 5 over few powers of 10, else only the powers, of many every second or third.
function chooseLabels(ticks) {
  const decades = Math.log10(ticks.at(-1) / ticks[0]);
  if (!(decades >= 1)) return ticks;
  const every = Math.ceil(decades / MAX_DECADES);
  const hasLabel = (tick) => {
    const [digit, power] = tick.toExponential().split("e").map(Number);
    return decades <= FEW_DECADES ? [1, 2, 5].includes(digit) : digit === 1 && power % every === 0;
  };
  return ticks.map((tick) => (hasLabel(tick) ? tick : null));
}
