// The large view of one chart: y range, zoom, all lines at a step, downloads. The URL contains chart, zoom and y.
import { announceSettled } from "../../common/panel.js";
import { buildLines, findLast, findNearest, needsSwitch } from "./data.js";
import { formatHours, formatShort } from "./format.js";
import { downloadCsv, downloadPng, findUnit } from "./export.js";
import { loadFullCurves } from "./full_curves.js";
import { makeElement, params, updateOptions, write } from "./page.js";
import { buildOptions, buildPlotData, describeUnplaced, takeSelection } from "./plot.js";
import { findOutside, findRange, findRangeProblem, parseOpenRange, parseRange } from "./range.js";
import { buildSide } from "./side.js";
import { ZoomFrame } from "./zoom_frame.js";
import { fill, gettext, ngettext } from "../../common/i18n.js";

const STEP = 0.25; // share of the x range that one key moves or zooms
const MIN_SPAN = 1e-3;
const TYPING = "input, select, textarea";

export class LargeChart {
  constructor(box, page, { find, keys, onClose, board, onRemove }) {
    Object.assign(this, { box, page, find, keys, onClose, board, plot: null, at: null, x: null });
    Object.assign(this, { isLoading: false, isHeld: false });
    this.part = (name) => box.querySelector(`[data-large="${name}"]`);
    this.frame = new ZoomFrame(this.part("frame"), page, (range) => this.endDrag(range), (range) => this.draw(range));
    this.abort = new AbortController();
    const { signal } = this.abort;
    const on = (name, act) => this.part(name)?.addEventListener("click", act, { signal });
    on("close", () => this.close());
    on("reset", () => this.setZoom(null));
    on("in", () => this.scaleZoom(1 - 2 * STEP));
    on("out", () => this.scaleZoom(1 / (1 - 2 * STEP)));
    on("next", () => this.move(1));
    on("previous", () => this.move(-1));
    on("png", () => downloadPng(this.chart, this.plotted, page, { xRange: this.xRange, yRange: this.yRange, note: this.note }));
    on("csv", () => downloadCsv(this.chart, this.plotted, page, this.xRange));
    on("show", () => this.setMode(""));
    on("remove", () => {
      const { key } = this.chart;
      this.close();
      onRemove(key);
    });
    for (const button of box.querySelectorAll("[data-range]"))
      button.addEventListener("click", () => this.setMode(button.dataset.range), { signal });
    for (const field of [this.part("low"), this.part("high")]) field.addEventListener("change", () => this.readFields(), { signal });
    this.part("run").addEventListener("change", (event) => page.drawRun(event.target.value), { signal });
    box.addEventListener("keydown", (event) => this.press(event), { signal });
    addEventListener("resize", () => this.plot && this.update(), { signal });
  }

  open(key) {
    this.chart = this.find(key).chart;
    this.plot = void this.plot?.destroy(); // a drag in it ends
    this.frame.destroy();
    this.full = this.loaded = null;
    this.at = this.x = null;
    write({ chart: key });
    this.box.hidden = false;
    announceSettled(this.box); // the footer shows other keys
    this.update();
    this.part("plot").focus();
  }

  // Until all points of newer curves are there, those of the last ones are drawn.
  async loadFull() {
    const { full, page, chart: { key } } = this;
    this.isLoading = true;
    this.loaded = page.runs;
    const curves = await loadFullCurves(page, this.chart);
    this.isLoading = false;
    if (this.abort.signal.aborted) return;
    if (this.shows(key)) this.full = curves;
    if (this.full !== full || this.loaded !== page.runs) this.update();
  }

  shows(key) {
    return this.chart.key === key;
  }

  close() {
    this.abort.abort();
    this.plot = void this.plot?.destroy();
    this.frame.destroy();
    this.box.hidden = true;
    write({ chart: "", zoom: "", y: "" });
    this.onClose(this.chart.key);
    announceSettled(this.box);
  }

  move(by) {
    const keys = this.keys();
    const next = keys[keys.indexOf(this.chart.key) + by];
    if (next) this.open(next);
  }

  // --- drawing ----------------------------------------------------------------------------------------------------------

  // While the user drags, the plot stays: a new one would lose the selection.
  update() {
    if (this.plot?.select.width || this.frame.hasSelection) return void (this.isHeld = true);
    this.isHeld = false;
    const small = this.find(this.chart.key);
    this.chart = small?.chart ?? this.chart;
    const runs = this.full ? this.page.runs.map((run) => ({ ...run, curves: this.full.get(run.uid) ?? run.curves })) : this.page.runs;
    const page = { ...this.page, runs };
    this.plotted = buildPlotData(this.chart, buildLines(this.chart, page), page);
    this.part("title").textContent = this.chart.title;
    const unit = findUnit(this.chart.names);
    this.part("unit").textContent = unit && `(${unit})`;
    this.part("figure").dataset.names = this.chart.names.join("\n");
    this.updatePicker();
    this.updateButtons();
    this.draw();
    if (!this.isLoading && this.loaded !== this.page.runs) this.loadFull();
    if (small && this.chart.query) this.page.count(small); // small charts are not painted now
  }

  updatePicker() {
    const { runs, one } = this.page, picker = this.part("run");
    picker.hidden = !needsSwitch(this.chart, runs);
    updateOptions(picker, runs.map((run) => [run.uid, run.name]), one);
  }

  updateButtons() {
    const { key, query } = this.chart;
    this.box.querySelector("[data-arrange=pin]")?.setAttribute("aria-pressed", this.board.pinned.includes(key));
    const kept = this.board.queries.includes(key.replace("query:", ""));
    this.part("remove").hidden = !query || (kept && !this.box.querySelector("[data-arrange]"));
  }

  get mode() {
    return params().get("y") ?? "";
  }

  // The range is that of the URL, except while the frame is dragged.
  draw(range = parseRange(params().get("zoom"))) {
    this.xRange = range ?? this.page.span();
    this.yRange = findRange(this.mode, this.plotted, this.xRange);
    const [axis] = this.plotted.data;
    this.at = this.x == null || !axis.length ? null : findNearest({ x: axis }, this.x); // other curves have other points
    this.plot?.destroy();
    const holder = this.part("plot"), width = holder.clientWidth;
    const height = Math.max(220, Math.min(innerHeight - holder.getBoundingClientRect().top - 150, 640));
    const cursor = { drag: { x: true, y: false, setScale: false } };
    const hooks = { setCursor: [(plot) => this.point(plot.cursor.idx)], setSelect: [(plot) => this.select(plot)] };
    const ranges = { xRange: () => this.xRange, yRange: () => this.yRange };
    const options = buildOptions(this.plotted, this.page, { width, height, dense: false, cursor, hooks, ...ranges });
    this.plot = new window.uPlot(options, this.plotted.data, holder);
    this.frame.draw(this.plotted, width, this.xRange, options.padding[1]);
    this.showControls();
    this.showSide();
  }

  showControls() {
    const { mode } = this;
    for (const button of this.box.querySelectorAll("[data-range]"))
      button.setAttribute("aria-pressed", button.dataset.range === mode);
    const [low, high] = parseOpenRange(mode) ?? [];
    if (document.activeElement !== this.part("low")) this.part("low").value = low ?? "";
    if (document.activeElement !== this.part("high")) this.part("high").value = high ?? "";
    this.showRangeProblem(findRangeProblem(mode, this.plotted.log));
    this.part("reset").disabled = !params().get("zoom");
    this.showOutside();
    this.showShareLink();
    const { lines, raw } = this.plotted;
    const values = lines.map((line, n) => `${line.title} ${formatShort(findLast(raw[n]))}`);
    const label = gettext("{chart}: {values}. The arrow keys move between steps, Shift with an arrow key moves the zoom.");
    this.part("plot").setAttribute("aria-label", fill(label, { chart: this.chart.title, values: values.join(", ") }));
  }

  // Points outside of the y range are counted and named. A chart of a query also shows how far it is counted.
  showOutside() {
    const { count, named } = findOutside(this.plotted, this.xRange, this.yRange);
    const box = this.part("outside");
    const progress = this.chart.query && this.find(this.chart.key)?.note.textContent;
    const notes = [progress, describeUnplaced(this.plotted), count && this.describeOutside(count, named)].filter(Boolean);
    box.hidden = !notes.length;
    this.part("show").hidden = !count;
    this.note = this.part("outside-text").textContent = notes.join(" ");
  }

  describeOutside(count, named) {
    const place = (x) => (this.page.axis === "step" ? fill(gettext("step {step}"), { step: x }) : formatHours(x));
    const points = named.map(({ line, x, value }) => `${line.title}, ${place(x)}: ${formatShort(value)}`);
    const text = ngettext("{count} point outside of the range: {points}", "{count} points outside of the range: {points}", count);
    return fill(text, { count, points: points.join("; ") + (count > named.length ? " …" : "") });
  }

  // The page that shares this chart outside: with its metrics, the drawn runs and groups, the scale and the zoom.
  showShareLink() {
    const link = this.part("share");
    if (!link) return;
    const url = new URL(link.href), here = params();
    const run = url.searchParams.get("run");
    url.search = new URLSearchParams([["run", run], ...this.chart.names.map((name) => ["metric", name])]);
    const kept = ["runs", "groups", "log", ...(this.page.axis === "step" ? ["zoom"] : [])];
    for (const name of kept) if (here.get(name)) url.searchParams.set(name, here.get(name));
    link.href = url.href;
  }

  showSide() {
    this.part("side").replaceChildren(...buildSide(this.page, this.plotted, this.at, this.xRange));
  }

  // --- the crosshair ------------------------------------------------------------------------------------------------------

  point(index) {
    if (index == null || index === this.at || !this.plot) return; // the last step stays when the pointer leaves
    this.at = index;
    this.x = this.plotted.data[0][index];
    this.showSide();
  }

  step(by) {
    const axis = this.plotted.data[0];
    const inside = axis.map((_, at) => at).filter((at) => axis[at] >= this.xRange[0] && axis[at] <= this.xRange[1]);
    if (!inside.length) return;
    const last = inside.length - 1;
    const now = this.at == null ? (by > 0 ? -1 : last + 1) : inside.indexOf(this.at);
    const next = inside[Math.min(Math.max(now + by, 0), last)];
    this.plot.setCursor({ left: this.plot.valToPos(axis[next], "x"), top: 20 });
    this.point(next);
    const x = this.page.axis === "step" ? axis[next] : formatHours(axis[next]);
    this.page.announce(x, this.plotted.lines, this.plotted.raw.map((values) => values[next]));
  }

  press(event) {
    if (event.target.matches(TYPING) || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    if (event.shiftKey) this.panZoom(by * STEP);
    else this.step(by);
  }

  // --- ranges -------------------------------------------------------------------------------------------------------------

  // At the end of a drag. uPlot finishes first: a plot that is destroyed in between listens on, and takes each later click for
  // another end of the drag.
  select(plot) {
    const range = takeSelection(plot);
    queueMicrotask(() => {
      if (this.abort.signal.aborted) return;
      if (plot === this.plot) this.endDrag(range);
    });
  }

  endDrag(range) {
    if (range) this.setZoom(range);
    else if (this.isHeld) this.update();
  }

  setZoom(range) {
    const [low, high] = this.page.span();
    const round = (x) => Number(x.toPrecision(7));
    const inside = range && [round(Math.max(low, range[0])), round(Math.min(high, range[1]))];
    const isWhole = !inside || (inside[0] <= low && inside[1] >= high) || inside[1] - inside[0] < MIN_SPAN;
    write({ zoom: isWhole ? "" : inside.join("..") });
    if (this.isHeld) this.update();
    else this.draw();
  }

  scaleZoom(factor) {
    const [from, to] = this.xRange;
    const middle = this.at == null ? (from + to) / 2 : this.plotted.data[0][this.at];
    const half = ((to - from) * factor) / 2;
    this.setZoom([middle - half, middle + half]);
  }

  panZoom(share) {
    const [from, to] = this.xRange, [low, high] = this.page.span();
    const by = Math.min(Math.max(share * (to - from), low - from), high - to);
    this.setZoom([from + by, to + by]);
  }

  setMode(mode) {
    write({ y: mode });
    this.draw();
  }

  readFields() {
    const low = this.part("low"), high = this.part("high");
    const isEmpty = low.value === "" && high.value === "";
    const range = parseOpenRange(`${low.value}..${high.value}`);
    if (range || isEmpty) this.setMode(isEmpty ? "" : range.map((end) => end ?? "").join(".."));
    else this.showRangeProblem(gettext("The first number must be smaller than the second."));
  }

  showRangeProblem(text) {
    const error = this.part("range-error");
    error.textContent = text;
    error.hidden = !text;
    for (const name of ["low", "high"]) this.part(name).setAttribute("aria-invalid", String(Boolean(text)));
  }
}
