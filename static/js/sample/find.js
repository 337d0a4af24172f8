// Find in the sample: hits are counted, coloured as CSS highlights (no element changes) and drawn into a map.
import { fill, gettext } from "../common/i18n.js";
import { address } from "../common/panel.js";
import { onEscape } from "../common/shortcuts.js";
import { reveal } from "./dom.js";

const MOST_COLOURED = 5000;
const can = "highlights" in CSS;
let pane, text, hits, at, waiting;

const bar = () => pane?.querySelector("form[data-find]");
const field = () => bar().querySelector("input");

export function open(where) {
  pane = where;
  look(0);
}

// Another sample came into the pane, or the page was opened with words to find.
export function again(where) {
  const words = new URLSearchParams(location.search).get("find");
  if (where.querySelector("form[data-find]").dataset.open === words) return;
  pane = where;
  bar().hidden = false;
  field().value = words;
  look(0, false);
}

function close() {
  if (!bar() || bar().hidden) return false;
  clearTimeout(waiting);
  field().blur(); // a hidden field keeps the keys until the browser draws again
  bar().hidden = true;
  remember("");
  clear();
  return true;
}

function clear() {
  if (can) for (const name of ["find", "find-here"]) CSS.highlights.delete(name);
}

function remember(words) {
  bar().dataset.open = words;
  history.replaceState(null, "", address({ find: words }));
}

// All text of the sample as one string, and where each text node begins in it.
function gathered() {
  const nodes = [];
  const starts = [];
  let whole = "";
  for (const root of pane.querySelectorAll("[data-text]:not([hidden])")) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      if (node.parentElement.closest("summary")) continue;
      nodes.push(node);
      starts.push(whole.length);
      whole += node.data;
    }
    whole += "\n"; // nothing is found across two texts
  }
  return { nodes, starts, whole };
}

function look(place, jump = true) {
  clearTimeout(waiting);
  waiting = 0;
  const words = field().value;
  remember(words);
  clear();
  text = gathered();
  const literal = words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  hits = words ? [...text.whole.matchAll(new RegExp(literal, "gi"))].map((found) => [found.index, found.index + found[0].length]) : [];
  at = place;
  if (can && hits.length) CSS.highlights.set("find", new Highlight(...hits.slice(0, MOST_COLOURED).map(range)));
  go(0, jump);
}

// To another hit of what stands in the field now, also when it was typed a moment ago.
export function turn(by) {
  if (waiting) look(0, false);
  go(by);
}

function go(by, jump = true) {
  if (hits.length) at = (at + by + hits.length) % hits.length;
  const found = () => fill(gettext("{at} of {count}"), { at: (at + 1).toLocaleString("en"), count: hits.length.toLocaleString("en") });
  bar().querySelector("output").textContent = hits.length ? found() : field().value ? gettext("not in this sample") : "";
  draw();
  if (!hits.length) return;
  const here = range(hits[at]);
  if (can) CSS.highlights.set("find-here", new Highlight(here));
  if (jump) bring(here);
}

function range([start, end]) {
  const made = new Range();
  made.setStart(...inside(start));
  made.setEnd(...inside(end - 1, 1));
  return made;
}

// The text node that holds the character at this place, by bisection.
function inside(place, more = 0) {
  let [low, high] = [0, text.starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (text.starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return [text.nodes[low], place - text.starts[low] + more];
}

// The element first, which may be far from the hit when the text is long; then the hit itself.
function bring(here) {
  const element = here.startContainer.parentElement;
  reveal(element.closest(".block") ?? element, "nearest");
  const scroller = pane.scrollHeight > pane.clientHeight && getComputedStyle(pane).overflowY !== "visible" ? pane : document.getElementById("main");
  const box = here.startContainer.parentElement.closest(".prompt");
  for (const one of box && box.scrollHeight > box.clientHeight ? [box, scroller] : [scroller]) {
    const [hit, frame] = [here.getBoundingClientRect(), one.getBoundingClientRect()];
    one.scrollTop += hit.top - frame.top - one.clientHeight / 3;
  }
}

function draw() {
  const map = bar().querySelector("canvas");
  const scale = devicePixelRatio || 1;
  map.width = map.clientWidth * scale;
  map.height = 12 * scale;
  const pen = map.getContext("2d");
  const style = getComputedStyle(map);
  const tick = (hit, colour, width) => {
    pen.fillStyle = colour;
    pen.fillRect((hit[0] / text.whole.length) * (map.width - width), 0, width, map.height);
  };
  for (const hit of hits) tick(hit, style.color, scale);
  if (hits.length) tick(hits[at], style.borderTopColor, 3 * scale);
}

document.addEventListener("input", (event) => {
  if (event.target !== bar()?.querySelector("input")) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => look(0), 80);
});
document.addEventListener("keydown", (event) => {
  if (event.target !== bar()?.querySelector("input") || event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  turn(event.shiftKey ? -1 : 1);
});
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-find-close]")) return close();
  const button = event.target.closest("[data-find-go]");
  if (button) return turn(Number(button.dataset.findGo));
  const map = event.target.closest(".find-map");
  if (!map || !hits?.length) return;
  const place = (event.offsetX / map.clientWidth) * text.whole.length;
  const near = hits.reduce((best, hit, index) => (Math.abs(hit[0] - place) < Math.abs(hits[best][0] - place) ? index : best), 0);
  go(near - at);
});
onEscape(close);
