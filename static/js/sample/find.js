// Find in the sample: counts the hits, marks them as CSS highlights (no DOM changes) and draws them on a map.
import { fill, gettext } from "../common/i18n.js";
import { isIgnored } from "../common/keyboard_layout.js";
import { buildUrl } from "../common/panel.js";
import { onEscape } from "../common/shortcuts.js";
import { reveal } from "./dom.js";

const MAX_MARKED = 5000;
const can = "highlights" in CSS;
let pane, text, hits, at, waiting;

const bar = () => pane?.querySelector("form[data-find]");
const field = () => bar().querySelector("input");

export function openFind(where) {
  pane = where;
  search(0);
}

// Repeats the search after another sample was opened, or when the page's URL contains the words.
export function resumeFind(where) {
  const words = new URLSearchParams(location.search).get("find");
  if (where.querySelector("form[data-find]").dataset.open === words) return;
  pane = where;
  bar().hidden = false;
  field().value = words;
  search(0, false);
}

function close() {
  if (!bar() || bar().hidden) return false;
  clearTimeout(waiting);
  field().blur(); // a hidden field keeps the focus until the next paint
  bar().hidden = true;
  storeWords("");
  clear();
  return true;
}

function clear() {
  if (can) for (const name of ["find", "find-here"]) CSS.highlights.delete(name);
}

function storeWords(words) {
  bar().dataset.open = words;
  const url = buildUrl({ find: words });
  if (url !== buildUrl()) history.replaceState(history.state, "", url);
}

// The complete text of the sample as one string, and the start of each text node in it.
function collectText() {
  const nodes = [];
  const starts = [];
  let full = "";
  for (const root of pane.querySelectorAll("[data-text]:not([hidden])")) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      if (node.parentElement.closest("summary")) continue;
      nodes.push(node);
      starts.push(full.length);
      full += node.data;
    }
    full += "\n"; // no hit spans two texts
  }
  return { nodes, starts, full };
}

function search(start, jump = true) {
  clearTimeout(waiting);
  waiting = 0;
  const words = field().value;
  storeWords(words);
  clear();
  text = collectText();
  const literal = words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const matches = words ? [...text.full.matchAll(new RegExp(literal, "gi"))] : [];
  hits = matches.map((match) => [match.index, match.index + match[0].length]);
  at = start;
  if (can && hits.length) CSS.highlights.set("find", new Highlight(...hits.slice(0, MAX_MARKED).map(range)));
  go(0, jump);
}

// Moves to another hit of the current words, even if the search for them has not started yet.
export function moveFindBy(by) {
  if (waiting) search(0, false);
  go(by);
}

function go(by, jump = true) {
  if (hits.length) at = (at + by + hits.length) % hits.length;
  const [number, count] = [at + 1, hits.length].map((value) => value.toLocaleString("en"));
  const position = () => fill(gettext("{at} of {count}"), { at: number, count });
  bar().querySelector("output").textContent = hits.length ? position() : field().value ? gettext("no match in this sample") : "";
  drawMap();
  if (!hits.length) return;
  const here = range(hits[at]);
  if (can) CSS.highlights.set("find-here", new Highlight(here));
  if (jump) scrollToHit(here);
}

function range([start, end]) {
  const made = new Range();
  made.setStart(...findNode(start));
  made.setEnd(...findNode(end - 1, 1));
  return made;
}

// The text node that contains the character at this position, by bisection.
function findNode(position, more = 0) {
  let [low, high] = [0, text.starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (text.starts[middle] <= position) low = middle;
    else high = middle - 1;
  }
  return [text.nodes[low], position - text.starts[low] + more];
}

// Scrolls first to the element, which can be far from the hit in a long text, then to the hit.
function scrollToHit(here) {
  const element = here.startContainer.parentElement;
  reveal(element.closest(".block") ?? element, "nearest");
  const scrolls = pane.scrollHeight > pane.clientHeight && getComputedStyle(pane).overflowY !== "visible";
  const scroller = scrolls ? pane : document.getElementById("main");
  const box = here.startContainer.parentElement.closest(".prompt");
  for (const frame of box && box.scrollHeight > box.clientHeight ? [box, scroller] : [scroller]) {
    frame.scrollTop += here.getBoundingClientRect().top - frame.getBoundingClientRect().top - frame.clientHeight / 3;
  }
}

function drawMap() {
  const map = bar().querySelector("canvas");
  const scale = devicePixelRatio || 1;
  map.width = map.clientWidth * scale;
  map.height = 12 * scale;
  const pen = map.getContext("2d");
  const style = getComputedStyle(map);
  const tick = (hit, colour, width) => {
    pen.fillStyle = colour;
    pen.fillRect((hit[0] / text.full.length) * (map.width - width), 0, width, map.height);
  };
  for (const hit of hits) tick(hit, style.color, scale);
  if (hits.length) tick(hits[at], style.borderTopColor, 3 * scale);
}

document.addEventListener("input", (event) => {
  if (event.target !== bar()?.querySelector("input")) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => search(0), 80);
});
document.addEventListener("keydown", (event) => {
  if (event.target !== bar()?.querySelector("input") || event.key !== "Enter" || isIgnored(event)) return;
  event.preventDefault();
  moveFindBy(event.shiftKey ? -1 : 1);
});
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-find-close]")) return close();
  const button = event.target.closest("[data-find-go]");
  if (button) return moveFindBy(Number(button.dataset.findGo));
  const map = event.target.closest(".find-map");
  if (!map || !hits?.length) return;
  const target = (event.offsetX / map.clientWidth) * text.full.length;
  const distance = (hit) => Math.abs(hit[0] - target);
  const nearest = hits.reduce((best, hit, index) => (distance(hit) < distance(hits[best]) ? index : best), 0);
  go(nearest - at);
});
onEscape(close);
