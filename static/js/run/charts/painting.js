// When charts are drawn: visible ones at once, the others when the page is idle, or only when they come into view if there are
// many.
import { page, readColours, root } from "./page.js";
import { whenIdle } from "../../common/panel.js";

const BUDGET = 8; // ms for creating charts; painting them takes about as long again
const MAX_EAGER = 80; // more charts are not drawn before they come into view
const waiting = new Map(); // chart -> its width, measured for all charts at once: each new chart changes the layout
let charts = [], idle;

export function paintAll(all) {
  charts = [...all];
  page.colours ??= readColours();
  waiting.clear();
  const visible = [];
  for (const chart of charts) {
    const box = chart.box.getBoundingClientRect(); // all charts are measured before the first is painted
    if (!box.width) continue;
    const width = chart.box.clientWidth - 12;
    if (box.bottom > 0 && box.top < innerHeight) visible.push([chart, width]);
    else waiting.set(chart, width);
  }
  for (const [chart, width] of visible) chart.paint(width);
  requestAnimationFrame(() => requestAnimationFrame(paintRest)); // after the visible charts are on the screen
}

function paintRest() {
  if (waiting.size && charts.length <= MAX_EAGER) idle ??= whenIdle(paintSome, 200);
}

function paintSome() {
  idle = null;
  const until = performance.now() + BUDGET;
  do paint([waiting.keys().next().value]);
  while (waiting.size && performance.now() < until);
  paintRest();
}

function paint(some) {
  for (const chart of some) {
    const width = waiting.get(chart);
    if (waiting.delete(chart) && chart.box.isConnected && width > 0) chart.paint(width);
  }
}

// Charts that the user points at, focuses or scrolls to are painted at once.
const isNear = ({ top, bottom, width }) => width && bottom > -innerHeight && top < 1.5 * innerHeight;
const paintTarget = ({ target }) => waiting.size && paint([...waiting.keys()].filter((chart) => chart.box.contains(target)));
const paintVisible = () => paint([...waiting.keys()].filter((chart) => isNear(chart.box.getBoundingClientRect())));
root.addEventListener("focusin", paintTarget);
root.addEventListener("pointerover", paintTarget);
document.addEventListener("scroll", () => waiting.size && paintVisible(), { capture: true, passive: true });

let resizing;
new ResizeObserver(() => {
  clearTimeout(resizing);
  resizing = setTimeout(() => charts.forEach((chart) => {
    if (waiting.has(chart)) waiting.set(chart, chart.box.clientWidth - 12);
    else chart.resize();
  }), 80);
}).observe(root);
