// One chart: a uPlot of some lines. All charts share the crosshair; a point is a link to its step.
import { buildLines, findNearest, formatHours, formatShort, formatTicks, joinLines } from "./chart_data.js";
import { drawTicks } from "./chart_events.js";
import { fill, gettext } from "../common/i18n.js";

const HEIGHT = 104;
const DASHES = [[], [5, 3], [2, 2], [9, 3, 2, 3]];
const MAX_VALUES = 4; // in the header of a chart

export class Chart {
  constructor(chart, page) {
    Object.assign(this, { chart, page, plot: null, lines: [] });
    const title = chart.names.join("\n");
    this.box = Object.assign(document.createElement("figure"), { className: "chart", title, tabIndex: 0 });
    this.box.setAttribute("role", "group");
    const head = document.createElement("header");
    const name = Object.assign(document.createElement("span"), { className: "clip", textContent: chart.title });
    this.value = document.createElement("span");
    head.append(name, this.value);
    this.box.append(head);
    this.box.addEventListener("click", () => this.open());
    this.box.addEventListener("keydown", (event) => this.press(event));
    this.box.addEventListener("blur", () => this.plot?.setCursor({ left: -10, top: -10 }));
  }

  get several() {
    return this.page.runs.length > 1;
  }

  colour(line) {
    return this.page.colours.lines[this.number(line) - 1];
  }

  // The number of the colour, 1 to 8: that of the run. If there is only one run, its further metrics get the next numbers.
  // The three lines of a fan have one colour.
  number(line) {
    return 1 + ((line.run.colour - 1 + (this.several || this.chart.kind === "fan" ? 0 : line.part)) % 8);
  }

  // --- drawing ----------------------------------------------------------------------------------------------------------

  paint(width) {
    const { axis, weight } = this.page;
    this.lines = buildLines(this.chart, this.page.runs, axis);
    const log = this.page.log && this.lines.some((line) => line.values.some((value) => value > 0));
    const faint = weight > 0 && this.chart.kind !== "fan";
    const data = joinLines(this.lines, { weight, log, faint });
    const shape = JSON.stringify([this.lines.map((line) => [line.run.uid, line.name, line.number]), log, faint]);
    if (this.plot && shape === this.shape) this.plot.setData(data);
    else {
      this.plot?.destroy();
      this.plot = new window.uPlot(this.options(width, log, faint), data, this.box);
    }
    this.shape = shape;
    this.first = 1 + (faint ? this.lines.length : 0);
    this.showValues();
  }

  options(width, log, faint) {
    const { colours, sync } = this.page;
    const grid = { stroke: colours.hairline, width: 1 };
    const axis = { stroke: colours.muted, grid, ticks: { show: false }, font: "10px Inter Variable, sans-serif" };
    const formatSteps = (ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : ""));
    const formatX = (_, ticks) => (this.page.axis === "step" ? formatSteps(ticks) : ticks.map(formatHours));
    const raw = faint ? this.lines.map((line) => this.series(line, true)) : [];
    return {
      width, height: HEIGHT, padding: [6, 18, 0, 0],
      cursor: {
        sync: { key: sync.key, scales: ["x", null] }, points: { size: 5 }, drag: { x: false, y: false }, y: false,
        dataIdx: (plot, at, hovered, x) => this.snap(plot, at, hovered, x),
      },
      legend: { show: false },
      scales: { x: { time: false, range: () => this.page.span() }, y: { distr: log ? 3 : 1, range: log ? spreadLog : spread } },
      axes: [
        { ...axis, size: 18, gap: 2, space: 46, values: formatX },
        { ...axis, size: 44, gap: 3, space: 26, values: (_, ticks) => formatTicks(ticks) },
      ],
      series: [{}, ...raw, ...this.lines.map((line) => this.series(line, false))],
      bands: this.chart.kind === "fan" ? this.bands() : [],
      hooks: { setCursor: [() => this.showValues()], draw: [(plot) => drawTicks(plot, this.page, this.lines)] },
    };
  }

  series(line, faint) {
    const isNewer = (other) => other.run === line.run && other.name === line.name && other.number > line.number;
    const older = this.page.all && this.lines.some(isNewer);
    const edge = this.chart.kind === "fan" && !line.name.endsWith("p50");
    return {
      stroke: this.colour(line),
      width: faint || edge ? 1 : lineWidth(), alpha: faint ? 0.22 : edge ? 0.5 : older ? 0.35 : 1,
      dash: DASHES[((this.several && this.chart.kind !== "fan" ? line.part : 0) + line.run.again) % DASHES.length],
      spanGaps: true, points: { show: !faint && line.x.length < 2, size: 4 },
    };
  }

  // The area between the 10th and the 90th percentile of a run.
  bands() {
    return this.lines.flatMap((line, at) => {
      if (!line.name.endsWith("p90")) return [];
      const isLow = (other) => other.run === line.run && other.number === line.number && other.name.endsWith("p10");
      const low = this.lines.findIndex(isLow);
      const fill = this.colour(line).replace("rgb(", "rgba(").replace(")", ", 0.16)");
      return low < 0 ? [] : [{ series: [1 + at, 1 + low], fill }];
    });
  }

  // --- the crosshair ------------------------------------------------------------------------------------------------------

  // A line without a point at the cursor shows its nearest point.
  snap(plot, at, hovered, x) {
    const line = this.lines[(at - 1) % this.lines.length];
    if (at === 0 || !line?.x.length) return hovered;
    const target = line.x[findNearest(line, x)];
    const axis = plot.data[0];
    let index = hovered;
    while (index > 0 && axis[index] > target) index -= 1;
    while (index < axis.length - 1 && axis[index] < target) index += 1;
    return index;
  }

  // Shows the values at the crosshair, or the last values.
  showValues() {
    if (!this.plot || !this.lines.length) return;
    const at = this.plot.cursor.idx;
    const parts = this.lines.map((line, n) => {
      const values = this.plot.data[1 + n]; // raw values if there are also smoothed ones
      const value = at == null ? values.findLast((one) => one != null) : values[this.plot.cursor.idxs?.[1 + n] ?? at];
      const className = this.lines.length > 1 ? `c${this.number(line)}` : "";
      return Object.assign(document.createElement("i"), { className, textContent: formatShort(value) });
    });
    const hours = () => formatHours(this.plot.posToVal(this.plot.cursor.left, "x"));
    const x = at == null ? "" : `${this.page.axis === "step" ? this.plot.data[0][at] : hours()}: `;
    this.value.replaceChildren(x, ...parts.slice(0, MAX_VALUES), parts.length > MAX_VALUES ? " …" : "");
    if (at != null) return;
    const values = parts.map((part) => part.textContent).join(", ");
    const label = gettext("{chart}: {values}. Press the arrow keys to move between steps, Enter to open a step.");
    this.box.setAttribute("aria-label", fill(label, { chart: this.chart.title, values }));
  }

  press(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") return this.open(), event.preventDefault(), event.stopPropagation();
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const axis = this.plot.data[0];
    const at = Math.min(Math.max((this.plot.cursor.idx ?? (move > 0 ? -1 : axis.length)) + move, 0), axis.length - 1);
    this.plot.setCursor({ left: this.plot.valToPos(axis[at], "x"), top: 20 });
    event.preventDefault();
  }

  // Opens the step of the point that is nearest to the pointer.
  open() {
    const { idx, left, top } = this.plot?.cursor ?? {};
    if (idx == null) return;
    const x = this.plot.posToVal(left, "x");
    const distance = (line, n) => {
      const value = this.plot.data[this.first + n][this.plot.cursor.idxs?.[this.first + n] ?? idx];
      return value == null ? Infinity : Math.abs(this.plot.valToPos(value, "y") - top);
    };
    const distances = this.lines.map((line, n) => [line, distance(line, n)]);
    const [line] = distances.reduce((best, pair) => (pair[1] < best[1] ? pair : best));
    this.page.go(line, line.steps[findNearest(line, x)]);
  }

  resize() {
    const width = this.box.clientWidth - 12;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.plot = void this.plot?.destroy();
  }
}

// Without a GPU, a line of 500 points takes 15 times as long at 1.3 pixels as at 1 pixel.
const lineWidth = () => (devicePixelRatio > 1 ? 1.3 : 1);

// The y range with a margin above and below. A range close to floating-point precision is widened.
function spread(_, low, high) {
  if (low == null) return [0, 1];
  const room = Math.max((high - low) * 0.06, Math.abs(high) * 1e-4, 1e-9);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function spreadLog(_, low, high) {
  if (low == null) return [0.1, 1];
  const room = Math.max((high / low) ** 0.06, 1.02);
  return [low / room, high * room];
}
