// One small chart: a uPlot of some lines. All charts share the crosshair; a click or Enter opens the large view.
import { mayArrange } from "./board.js";
import { buildLines, findLast, findNearest, needsSwitch } from "./data.js";
import { formatHours, formatShort } from "./format.js";
import { buildOptions, buildPlotData, describeUnplaced, shapeOf } from "./plot.js";
import { updateOptions } from "./page.js";
import { hideTip, showTip } from "./tip.js";
import { fill, gettext } from "../../common/i18n.js";
import { nameInvisible } from "../../common/invisible.js";

const HEIGHT = 110;
const MAX_VALUES = 8; // in the header of a chart; of more lines it shows the range

export class Chart {
  constructor(spec, page) {
    const chart = { ...spec, title: nameInvisible(spec.title) };
    Object.assign(this, { chart, page, plot: null, lines: [] });
    this.box = Object.assign(document.createElement("figure"), { className: "chart", tabIndex: -1 });
    this.box.id = `chart-${encodeURIComponent(chart.key)}`;
    this.box.dataset.chart = chart.key;
    this.box.dataset.names = chart.names.join("\n");
    this.box.setAttribute("role", "group");
    const head = document.createElement("header");
    const name = Object.assign(document.createElement("span"), { className: "chart-name", textContent: chart.title });
    name.title = nameInvisible(chart.names.join("\n"));
    this.picker = Object.assign(document.createElement("select"), { className: "chart-run", hidden: true });
    this.picker.setAttribute("aria-label", gettext("Run drawn in charts of several metrics"));
    this.picker.addEventListener("change", () => this.page.drawRun(this.picker.value));
    this.value = Object.assign(document.createElement("span"), { className: "chart-values" });
    this.note = Object.assign(document.createElement("p"), { className: "chart-note muted", hidden: true });
    name.draggable = mayArrange;
    head.append(name, this.picker, this.value);
    this.box.append(head, this.note);
    this.box.addEventListener("click", (event) => event.target.closest("select") || this.page.enlarge(this.chart.key));
    this.box.addEventListener("keydown", (event) => this.press(event));
    this.box.addEventListener("blur", () => this.leave());
    this.box.addEventListener("pointerleave", hideTip);
  }

  showNote(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  // --- drawing ----------------------------------------------------------------------------------------------------------

  paint(width) {
    if (this.chart.query) this.page.count(this);
    this.lines = buildLines(this.chart, this.page);
    const plotted = buildPlotData(this.chart, this.lines, this.page), shape = shapeOf(plotted);
    const isSame = this.plot && shape === this.shape;
    this.plotted = isSame ? Object.assign(this.plotted, plotted) : plotted; // what draws the plot reads it
    this.updatePicker();
    if (!this.chart.query) this.showNote(describeUnplaced(this.plotted));
    if (isSame) this.plot.setData(this.plotted.data);
    else {
      this.plot?.destroy();
      this.plot = new window.uPlot(this.options(width), this.plotted.data, this.box);
    }
    this.shape = shape;
    this.showValues();
  }

  options(width) {
    const sync = { key: this.page.sync.key, scales: ["x", null] };
    const dataIdx = (plot, at, hovered, x) => this.snap(plot, at, hovered, x);
    const hooks = { setCursor: [() => this.showValues()] };
    return buildOptions(this.plotted, this.page, { width, height: HEIGHT, cursor: { sync, dataIdx }, hooks });
  }

  updatePicker() {
    const { runs, one } = this.page;
    this.picker.hidden = !needsSwitch(this.chart, runs);
    if (!this.picker.hidden) updateOptions(this.picker, runs.map((run) => [run.uid, run.short]), one);
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

  // The values of the lines at the crosshair, or null if there is none.
  readValues() {
    const { idx, idxs } = this.plot.cursor;
    return idx == null ? null : this.plotted.raw.map((values, n) => values[idxs?.[this.plotted.first + n] ?? idx]);
  }

  formatX() {
    const { idx, left } = this.plot.cursor;
    const hours = () => formatHours(this.plot.posToVal(left, "x"));
    return this.page.axis === "step" ? this.plot.data[0][idx].toLocaleString("en") : hours();
  }

  // Shows the values at the crosshair, or the last values.
  showValues() {
    if (!this.plot || !this.lines.length) return;
    const here = this.readValues();
    const values = here ?? this.plotted.raw.map(findLast);
    this.value.replaceChildren(here ? `${this.formatX()}: ` : "", ...this.buildValues(values));
    if (here && this.isHot()) this.showTip(here);
    if (here) return;
    const named = (line, n) => (this.lines.length > 1 ? `${line.title} ` : "") + formatShort(values[n]);
    const label = gettext("{chart}: {values}. Press the arrow keys to move between steps, Enter to enlarge the chart.");
    this.box.setAttribute("aria-label", fill(label, { chart: this.chart.title, values: this.lines.map(named).join(", ") }));
  }

  // One value for each line, in the order and the colours of the lines.
  buildValues(values) {
    const known = values.filter((value) => value != null);
    if (values.length > MAX_VALUES && known.length) {
      const range = { low: formatShort(Math.min(...known)), high: formatShort(Math.max(...known)), count: values.length };
      return [fill(gettext("{low} to {high} ({count} lines)"), range)];
    }
    const single = this.lines.length === 1;
    return this.lines.map((line, n) =>
      Object.assign(document.createElement("i"), { className: single ? "" : `c${line.colour}`, textContent: formatShort(values[n]) }));
  }

  // Whether the user is at this chart: the others only follow the crosshair.
  isHot() {
    return this.box.matches(":hover") || (this.box.matches(":focus") && !document.querySelector(".chart:hover"));
  }

  showTip(values) {
    const { left, top } = this.plot.cursor;
    const area = this.plot.over.getBoundingClientRect();
    const distance = (n) => (values[n] == null ? Infinity : Math.abs(this.plot.valToPos(this.plotValue(n), "y") - top));
    const nearest = this.lines.reduce((best, _, n) => (distance(n) < distance(best) ? n : best), 0);
    const title = this.page.axis === "step" ? fill(gettext("step {step}"), { step: this.formatX() }) : this.formatX();
    showTip(`${this.chart.title} · ${title}`, this.lines, values, { x: area.left + left, y: area.top + Math.max(top, 0) },
      this.lines[nearest]);
  }

  plotValue(n) {
    const { idx, idxs } = this.plot.cursor;
    return this.plot.data[this.plotted.first + n][idxs?.[this.plotted.first + n] ?? idx];
  }

  leave() {
    this.plot?.setCursor({ left: -10, top: -10 });
    hideTip();
  }

  press(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.target !== this.box) return;
    if (event.key === "Enter") return this.page.enlarge(this.chart.key), event.preventDefault(), event.stopPropagation();
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const axis = this.plot.data[0];
    const at = Math.min(Math.max((this.plot.cursor.idx ?? (move > 0 ? -1 : axis.length)) + move, 0), axis.length - 1);
    this.plot.setCursor({ left: this.plot.valToPos(axis[at], "x"), top: 20 });
    this.page.announce(this.formatX(), this.lines, this.readValues());
    event.preventDefault();
  }

  resize() {
    const width = this.box.clientWidth - 12;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.plot = void this.plot?.destroy();
  }
}
