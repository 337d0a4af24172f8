// The small chart below the large one: the whole axis, with a frame around the part that is shown. Drag the frame to move it,
// drag outside of it for another part.
import { buildOptions, takeSelection } from "./plot.js";

const HEIGHT = 58;

export class ZoomFrame {
  constructor(box, page, onZoom, onDrag) {
    Object.assign(this, { box, page, onZoom, onDrag, plot: null, isDragged: false });
    this.frame = Object.assign(document.createElement("div"), { className: "zoom-frame" });
  }

  get hasSelection() {
    return this.plot?.select.width > 0;
  }

  // A plot that has the pointer stays.
  draw(plotted, width, zoom, right) {
    if (this.plot && (this.isDragged || this.hasSelection)) return this.show(zoom, this.plot);
    this.plot?.destroy();
    const hooks = { setSelect: [(plot) => this.select(plot)], ready: [(plot) => this.show(zoom, plot)] };
    const cursor = { show: true, x: false, points: { show: false }, drag: { x: true, y: false, setScale: false } };
    const options = buildOptions(plotted, this.page, { width, height: HEIGHT, cursor, hooks });
    options.padding = [2, right, 0, 0];
    options.hooks.draw = [];
    options.axes[1].size = 56;
    options.axes[1].space = 40;
    this.plot = new window.uPlot(options, plotted.data, this.box);
    this.plot.over.append(this.frame);
    this.frame.onpointerdown = (event) => this.grab(event);
  }

  show([from, to], plot) {
    this.zoom = [from, to];
    const left = plot.valToPos(from, "x"), right = plot.valToPos(to, "x");
    this.frame.style.left = `${Math.max(0, left)}px`;
    this.frame.style.width = `${Math.max(6, Math.min(right, plot.over.clientWidth) - Math.max(0, left))}px`;
  }

  // `range` is null if the drag was too short. uPlot has to finish before its plot is destroyed.
  select(plot) {
    const range = takeSelection(plot);
    queueMicrotask(() => plot === this.plot && this.onZoom(range));
  }

  grab(event) {
    event.stopPropagation();
    event.preventDefault();
    const { plot, frame, zoom: [from, to] } = this, { min, max } = plot.scales.x;
    let range, waiting;
    this.isDragged = true;
    frame.setPointerCapture(event.pointerId);
    frame.onpointermove = (move) => {
      const by = plot.posToVal(move.clientX - event.clientX, "x") - min;
      const inside = Math.min(Math.max(by, min - from), max - to);
      range = [from + inside, to + inside];
      waiting ??= requestAnimationFrame(() => ((waiting = null), this.plot && this.onDrag(range)));
    };
    frame.onlostpointercapture = () => { // also after a cancelled drag
      cancelAnimationFrame(waiting);
      this.isDragged = false;
      frame.onpointermove = frame.onlostpointercapture = null;
      if (range && this.plot) this.onZoom(range);
    };
  }

  destroy() {
    this.plot = void this.plot?.destroy();
  }
}
