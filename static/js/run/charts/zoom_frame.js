// The small chart below the large one: the whole axis, with a frame around the part that is shown. Drag the frame to move it,
// drag outside of it for another part.
import { buildOptions } from "./plot.js";

const HEIGHT = 58;

export class ZoomFrame {
  constructor(box, page, onZoom) {
    Object.assign(this, { box, page, onZoom, plot: null });
    this.frame = Object.assign(document.createElement("div"), { className: "zoom-frame" });
  }

  draw(plotted, width, zoom, right) {
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
    const left = plot.valToPos(from, "x"), right = plot.valToPos(to, "x");
    this.frame.style.left = `${Math.max(0, left)}px`;
    this.frame.style.width = `${Math.max(6, Math.min(right, plot.over.clientWidth) - Math.max(0, left))}px`;
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width > 3) this.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    if (width) plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }

  grab(event) {
    event.stopPropagation();
    event.preventDefault();
    const { plot, frame } = this, start = frame.offsetLeft, width = frame.offsetWidth;
    frame.setPointerCapture(event.pointerId);
    frame.onpointermove = (move) => {
      const left = Math.min(Math.max(0, start + move.clientX - event.clientX), plot.over.clientWidth - width);
      this.onZoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    };
    frame.onpointerup = () => (frame.onpointermove = null);
  }

  destroy() {
    this.plot = void this.plot?.destroy();
  }
}
