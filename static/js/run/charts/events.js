// Ticks below each chart, one for each mark in the row of events.
import { findNearest } from "./data.js";

export const LANE = 6; // px between the chart and its axis, for the ticks: they never lie on a line
let source = "", events = [];

// [kind, step] of each event, parsed again only if the row has changed.
export function readEvents() {
  const current = document.querySelector("[data-ticks]")?.dataset.ticks ?? "";
  if (current !== source) {
    source = current;
    const words = source.trim().split(" ").map((word) => word.split("@"));
    events = words.map(([kind, step]) => [kind, Number(step)]);
  }
  return source.trim() ? events : [];
}

// On the time axis a step has the position of its nearest point.
export const placeStep = (step, axis, lines) =>
  axis === "time" && lines.length ? lines[0].x[findNearest({ x: lines[0].steps }, step)] : step;

export function drawTicks(plot, { axis, colours }, lines) {
  const { ctx, bbox, pxRatio = devicePixelRatio } = plot;
  for (const [kind, step] of readEvents()) {
    const left = Math.round(plot.valToPos(placeStep(step, axis, lines), "x", true));
    if (!(left >= bbox.left && left <= bbox.left + bbox.width)) continue;
    ctx.fillStyle = colours.events[kind];
    ctx.fillRect(left - pxRatio, bbox.top + bbox.height + pxRatio, 2 * pxRatio, (LANE - 1) * pxRatio);
  }
}
