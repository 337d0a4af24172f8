// At the foot of each chart: ticks where the row of events has a mark.
import { nearest } from "./chart_data.js";

let told = "", found = [];

// [kind, step] of each event, read anew only when the row says something else.
function events() {
  const said = document.querySelector("[data-ticks]")?.dataset.ticks ?? "";
  if (said !== told) [told, found] = [said, said.trim().split(" ").map((word) => word.split("@")).map(([kind, step]) => [kind, Number(step)])];
  return told.trim() ? found : [];
}

// Over hours a step stands where its nearest point is.
export function ticks(plot, { axis, colours }, lines) {
  const { ctx, bbox, pxRatio = devicePixelRatio } = plot;
  for (const [kind, step] of events()) {
    const line = axis === "time" ? lines[0] : null;
    const x = line ? line.x[nearest({ x: line.steps }, step)] : step;
    const left = Math.round(plot.valToPos(x, "x", true));
    if (!(left >= bbox.left && left <= bbox.left + bbox.width)) continue;
    ctx.fillStyle = colours.events[kind];
    ctx.fillRect(left - pxRatio, bbox.top + bbox.height - 6 * pxRatio, 2 * pxRatio, 6 * pxRatio);
  }
}
