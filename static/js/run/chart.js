// One chart: a uPlot of some lines, its crosshair shared with all others, a point of it a link to its step.
import { joined, linesOf, moment, nearest, short, ticked } from "./chart_data.js";
import { ticks } from "./chart_events.js";
import { fill, gettext } from "../common/i18n.js";

const HEIGHT = 104;
const DASHES = [[], [5, 3], [2, 2], [9, 3, 2, 3]];
const TOLD = 4; // values in a chart's head

export class Drawing {
  constructor(chart, page) {
    Object.assign(this, { chart, page, plot: null, lines: [] });
    this.box = Object.assign(document.createElement("figure"), { className: "chart", title: chart.names.join("\n"), tabIndex: 0 });
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

  // 1 to 8: the run's own; where it is alone its further metrics take the next ones. The three lines of a fan are one thing.
  number(line) {
    return 1 + ((line.run.colour - 1 + (this.several || this.chart.kind === "fan" ? 0 : line.part)) % 8);
  }

  // --- drawing ----------------------------------------------------------------------------------------------------------

  paint(width) {
    const { axis, weight } = this.page;
    this.lines = linesOf(this.chart, this.page.runs, axis);
    const log = this.page.log && this.lines.some((line) => line.values.some((value) => value > 0));
    const faint = weight > 0 && this.chart.kind !== "fan";
    const data = joined(this.lines, { weight, log, faint });
    const shape = JSON.stringify([this.lines.map((line) => [line.run.uid, line.name, line.number]), log, faint]);
    if (this.plot && shape === this.shape) this.plot.setData(data);
    else {
      this.plot?.destroy();
      this.plot = new window.uPlot(this.options(width, log, faint), data, this.box);
    }
    this.shape = shape;
    this.first = 1 + (faint ? this.lines.length : 0);
    this.tell();
  }

  options(width, log, faint) {
    const { colours, sync } = this.page;
    const axis = { stroke: colours.muted, grid: { stroke: colours.hairline, width: 1 }, ticks: { show: false }, font: "10px Inter Variable, sans-serif" };
    const steps = this.page.axis === "step";
    return {
      width, height: HEIGHT, padding: [6, 18, 0, 0],
      cursor: { sync: { key: sync.key, scales: ["x", null] }, points: { size: 5 }, drag: { x: false, y: false }, y: false, dataIdx: (plot, at, hovered, x) => this.snap(plot, at, hovered, x) },
      legend: { show: false },
      scales: { x: { time: false, range: () => this.page.span() }, y: { distr: log ? 3 : 1, range: log ? spreadLog : spread } },
      axes: [
        { ...axis, size: 18, gap: 2, space: 46, values: (_, ticks) => (steps ? ticks.map((tick) => (Number.isInteger(tick) ? tick.toLocaleString("en") : "")) : ticks.map(moment)) },
        { ...axis, size: 44, gap: 3, space: 26, values: (_, ticks) => ticked(ticks) },
      ],
      series: [{}, ...(faint ? this.lines.map((line) => this.series(line, true)) : []), ...this.lines.map((line) => this.series(line, false))],
      bands: this.chart.kind === "fan" ? this.bands() : [],
      hooks: { setCursor: [() => this.tell()], draw: [(plot) => ticks(plot, this.page, this.lines)] },
    };
  }

  series(line, faint) {
    const older = this.page.all && this.lines.some((other) => other.run === line.run && other.name === line.name && other.number > line.number);
    const edge = this.chart.kind === "fan" && !line.name.endsWith("p50");
    return {
      stroke: this.colour(line),
      width: faint || edge ? 1 : wide(), alpha: faint ? 0.22 : edge ? 0.5 : older ? 0.35 : 1,
      dash: DASHES[((this.several && this.chart.kind !== "fan" ? line.part : 0) + line.run.again) % DASHES.length],
      spanGaps: true, points: { show: !faint && line.x.length < 2, size: 4 },
    };
  }

  // Between a run's lowest tenth and its highest.
  bands() {
    return this.lines.flatMap((line, at) => {
      if (!line.name.endsWith("p90")) return [];
      const low = this.lines.findIndex((one) => one.run === line.run && one.number === line.number && one.name.endsWith("p10"));
      const fill = this.colour(line).replace("rgb(", "rgba(").replace(")", ", 0.16)");
      return low < 0 ? [] : [{ series: [1 + at, 1 + low], fill }];
    });
  }

  // --- the crosshair ------------------------------------------------------------------------------------------------------

  // Lines whose points lie apart show their nearest one.
  snap(plot, at, hovered, x) {
    const line = this.lines[(at - 1) % this.lines.length];
    if (at === 0 || !line?.x.length) return hovered;
    const wanted = line.x[nearest(line, x)];
    const axis = plot.data[0];
    let found = hovered;
    while (found > 0 && axis[found] > wanted) found -= 1;
    while (found < axis.length - 1 && axis[found] < wanted) found += 1;
    return found;
  }

  // The values under the crosshair, else the last.
  tell() {
    if (!this.plot || !this.lines.length) return;
    const at = this.plot.cursor.idx;
    const parts = this.lines.map((line, n) => {
      const values = this.plot.data[1 + n]; // raw ones, where there are smoothed ones too
      const value = at == null ? values.findLast((one) => one != null) : values[this.plot.cursor.idxs?.[1 + n] ?? at];
      return Object.assign(document.createElement("i"), { className: this.lines.length > 1 ? `c${this.number(line)}` : "", textContent: short(value) });
    });
    const x = at == null ? "" : this.page.axis === "step" ? `${this.plot.data[0][at]}: ` : `${moment(this.plot.posToVal(this.plot.cursor.left, "x"))}: `;
    this.value.replaceChildren(x, ...parts.slice(0, TOLD), parts.length > TOLD ? " …" : "");
    if (at != null) return;
    const values = parts.map((part) => part.textContent).join(", ");
    this.box.setAttribute("aria-label", fill(gettext("{chart}: {values}. Arrows move along the steps, Enter opens one."), { chart: this.chart.title, values }));
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

  // To the step of the point that is nearest to the pointer, in its run.
  open() {
    const { idx, left, top } = this.plot?.cursor ?? {};
    if (idx == null) return;
    const x = this.plot.posToVal(left, "x");
    const distance = (line, n) => {
      const value = this.plot.data[this.first + n][this.plot.cursor.idxs?.[this.first + n] ?? idx];
      return value == null ? Infinity : Math.abs(this.plot.valToPos(value, "y") - top);
    };
    const [line] = this.lines.map((one, n) => [one, distance(one, n)]).reduce((best, one) => (one[1] < best[1] ? one : best));
    this.page.go(line, line.steps[nearest(line, x)]);
  }

  resize() {
    const width = this.box.clientWidth - 12;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.plot = void this.plot?.destroy();
  }
}

// Of one pixel a line of 500 points is drawn in a fifteenth of the time that a browser without a GPU takes for 1.3.
const wide = () => (devicePixelRatio > 1 ? 1.3 : 1);

// Room above and below; a span that floating point can hardly tell apart gets a visible one.
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
