// The names of the lines at their ends, in their colours.

export const FONT = "600 10px Inter Variable, Noto Sans, sans-serif";
const LINE = 11, GAP = 4; // px
const SLACK = 1.08; // the font may not be loaded yet when its fallback is measured
const MAX_LABELS = 8; // with more lines, only the first and the last one are named
const EARLY = 0.9; // a line that ends before this part of the axis has its name at its end

const probe = document.createElement("canvas").getContext("2d");

export const listLabelled = (lines) => (lines.length > MAX_LABELS ? [lines[0], lines.at(-1)] : lines);

// The width of the margin for the names, in px.
export function measureLabels(lines, font = FONT) {
  probe.font = font;
  const widths = listLabelled(lines).map((line) => probe.measureText(line.label).width);
  return Math.ceil(SLACK * Math.max(0, ...widths)) + GAP + 2;
}

// Draws into the canvas of a uPlot; the series of `lines` begin at index `first`.
export function drawLabels(plot, lines, colours, first, font = FONT) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio;
  const places = [];
  for (const line of listLabelled(lines)) {
    const values = plot.data[first + lines.indexOf(line)];
    const end = values.findLastIndex((value, at) => value != null && plot.data[0][at] <= plot.scales.x.max);
    if (end < 0) continue;
    const x = Math.min(plot.valToPos(plot.data[0][end], "x", true), bbox.left + bbox.width);
    const y = Math.min(Math.max(plot.valToPos(values[end], "y", true), bbox.top), bbox.top + bbox.height);
    if (Number.isFinite(x + y) && x >= bbox.left) places.push({ line, x, y, early: x < bbox.left + EARLY * bbox.width });
  }
  ctx.save();
  ctx.font = font.replace(/(\d+)px/, (_, size) => `${size * ratio}px`);
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.strokeStyle = colours.paper;
  ctx.lineWidth = 3 * ratio;
  ctx.lineJoin = "round";
  const margin = spreadOut(places.filter((place) => !place.early), LINE * ratio, bbox);
  for (const { line, x, y, early } of [...places.filter((place) => place.early), ...margin]) {
    if (early) ctx.strokeText(line.label, x + GAP * ratio, y); // a halo, since other lines go on behind the name
    ctx.fillStyle = colours.lines[line.colour - 1];
    ctx.fillText(line.label, (early ? x : bbox.left + bbox.width) + GAP * ratio, y);
  }
  ctx.restore();
}

// Moves the names apart so that they do not overlap, and keeps them inside the height of the chart.
function spreadOut(places, height, { top, height: room }) {
  const sorted = places.sort((a, b) => a.y - b.y);
  sorted.forEach((place, at) => at && (place.y = Math.max(place.y, sorted[at - 1].y + height)));
  let floor = top + room;
  for (const place of sorted.toReversed()) {
    place.y = Math.min(place.y, floor);
    floor = place.y - height;
  }
  return sorted;
}
