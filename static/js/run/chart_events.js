// Ticks at the bottom of each chart, one for each mark in the timeline of events.
import { findNearest } from "./chart_data.js";

let source = "", events = [];

// [kind, step] of each event, parsed again only if the timeline has changed.
function readEvents() {
  const current = document.querySelector("[data-ticks]")?.dataset.ticks ?? "";
  if (current !== source) {
    source = current;
    const words = source.trim().split(" ").map((word) => word.split("@"));
    events = words.map(([kind, step]) => [kind, Number(step)]);
  }
  return source.trim() ? events : [];
}

// On the time axis a step has the position of its nearest point.
export function drawTicks(plot, { axis, colours }, lines) {
  const { ctx, bbox, pxRatio = devicePixelRatio } = plot;
  for (const [kind, step] of readEvents()) {
    const line = axis === "time" ? lines[0] : null;
    const x = line ? line.x[findNearest({ x: line.steps }, step)] : step;
    const left = Math.round(plot.valToPos(x, "x", true));
    if (!(left >= bbox.left && left <= bbox.left + bbox.width)) continue;
    ctx.fillStyle = colours.events[kind];
    ctx.fillRect(left - pxRatio, bbox.top + bbox.height - 6 * pxRatio, 2 * pxRatio, 6 * pxRatio);
  }
}
