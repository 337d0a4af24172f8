// Roving tabindex: a strip, list or grid is one tab stop, and arrow keys, Home and End move inside it. Without this script
// every item is an ordinary link. How to use it: set `data-roving` on the container, no call is needed.
//
//   data-roving="x"     a strip: ← → move to the previous and next item
//   data-roving="y"     a list: ↑ ↓
//   data-roving="grid"  a table: ← → move inside a row, ↑ ↓ to the same column of the next row, Home and End to the ends of the
//                       row, Ctrl+Home and Ctrl+End to the first and last item. A row is a `tr` or has `data-roving-row`.
//   data-roving-items   a selector of the items; by default all links, buttons, checkboxes, and elements with `data-roving-item`.
//                       In a text field that is an item, ← and → move on only at the ends of its text; Home and End stay in it.
//                       A text that scrolls is a stop of its own, and keeps its keys.
//   data-roving-main    a selector of the item that a selected row is known by; by default its first item
//
// The tab stop is the item that had the focus last; when the selection of the page moves (`aria-current` of an item,
// `aria-selected` or `aria-current` of its row), the item of the selection. An item is known by its `id`, the `data-id` of its
// row or its link, so that stop and focus survive when a panel is replaced; give the container an `id` for this.
// Enter and Space do what they do on a link or button. Text fields inside that are no items keep all their keys.
import { isIgnored } from "./keyboard_layout.js";

const ITEMS = "a[href], button, summary, input[type=checkbox], input[type=radio], [data-roving-item]";
const TYPING = "select, textarea, input:not([type=checkbox], [type=radio], [type=button], [type=submit])";
const MOVES = {
  x: { ArrowLeft: -1, ArrowRight: 1 },
  y: { ArrowUp: -1, ArrowDown: 1 },
  grid: { ArrowLeft: -1, ArrowRight: 1 },
};
const ROW = "tr, [data-roving-row]";
const stops = new Map(); // name of the container -> { item, selection }, both as keys
let held; // { name, item } while an item has the focus

const nameOf = (box) => box.id || box.dataset.roving + (box.getAttribute("aria-label") ?? "");
const isScrolling = (item) => item.matches("div[data-roving-item]") && item.scrollHeight > item.clientHeight + 1;
const isUsable = (item) => !item.matches(":disabled") && !item.closest("[hidden]") && !isScrolling(item);
const isInline = (box) => (item) => item.closest("[data-roving]") === box;
const itemsOf = (box) => [...box.querySelectorAll(box.dataset.rovingItems ?? ITEMS)].filter(isInline(box)).filter(isUsable);

// The query of a link changes with the selection of the page, unless the link is only a query.
function getItemId(item) {
  const [path, query] = (item.getAttribute("href") ?? "").split("?");
  const row = item.closest(ROW);
  return [item.id || row?.dataset.id || row?.id || "", item.tagName, path || query || item.value || ""].join(" ");
}

const SELECTED = '[aria-selected="true"], [aria-current]:not([aria-current="false"])';

// The item of the page's selection: in a selected row the main one.
function findSelected(box, items) {
  const main = box.dataset.rovingMain;
  const inRow = items.filter((item) => item.closest(ROW)?.matches(SELECTED));
  return items.find((item) => item.matches(SELECTED)) ?? inRow.find((item) => main && item.matches(main)) ?? inRow[0];
}

// The item that Tab reaches.
function findStop(box, items) {
  const name = nameOf(box);
  const known = stops.get(name);
  const selected = findSelected(box, items);
  const selection = selected && getItemId(selected);
  if (selected && selection !== known?.selection) {
    stops.set(name, { selection, item: selection });
    return selected;
  }
  return (known && items.find((item) => getItemId(item) === known.item)) ?? selected
    ?? items.find((item) => item.matches(box.dataset.rovingMain || ITEMS)) ?? items[0];
}

function arrange(box) {
  const items = itemsOf(box);
  const stop = items.includes(document.activeElement) && !isMoved(box, items) ? document.activeElement : findStop(box, items);
  for (const item of items) {
    const index = item === stop ? 0 : -1;
    if (item.getAttribute("tabindex") !== String(index)) item.setAttribute("tabindex", index);
  }
  return stop;
}

// Whether the selection of the page moved since the focus came in.
function isMoved(box, items) {
  const selected = findSelected(box, items);
  return Boolean(selected && stops.has(nameOf(box)) && getItemId(selected) !== stops.get(nameOf(box)).selection);
}

const arrangeAll = (root = document) => root.querySelectorAll("[data-roving]").forEach(arrange);

// --- the focus --------------------------------------------------------------------------------------------------------

document.addEventListener("focusin", ({ target }) => {
  const box = target.closest?.("[data-roving]");
  held = undefined;
  if (!box) return;
  const items = itemsOf(box);
  if (!items.includes(target)) return;
  const selected = findSelected(box, items);
  held = { name: nameOf(box), item: target };
  stops.set(held.name, { item: getItemId(target), selection: selected && getItemId(selected) });
  arrange(box);
});

// An item that is replaced loses the focus too, but is not connected any more, or is inert until then.
document.addEventListener("focusout", ({ target }) => queueMicrotask(() => {
  if (held?.item === target && target.isConnected && !target.closest("[inert]")) held = undefined;
}));

// After a panel was replaced: its item gets the focus again. After the selection moved, the focus follows it.
function keepFocus() {
  if (!held) return;
  const lost = !held.item.isConnected && (!document.activeElement || document.activeElement === document.body);
  const box = lost
    ? [...document.querySelectorAll("[data-roving]")].find((one) => nameOf(one) === held.name)
    : held.item.closest("[data-roving]");
  if (!box) return;
  const stop = arrange(box);
  if (stop && stop !== document.activeElement && (lost || box.contains(document.activeElement))) stop.focus({ preventScroll: !lost });
}

document.addEventListener("deck:settled", ({ detail }) => (arrangeAll(detail.panel), keepFocus()));
// After the swap, not only when it has settled: a key may come in between. htmx names each new element; once is enough.
const arranged = {};
for (const name of ["htmx:afterSwap", "htmx:afterSettle"]) {
  document.addEventListener(name, ({ detail: { xhr } }) => {
    if (xhr && arranged[name] === xhr) return;
    arranged[name] = xhr;
    arrangeAll();
    keepFocus();
  });
}
// Scripts build parts of some pages, so the stops are set before each Tab.
document.addEventListener("keydown", (event) => event.key === "Tab" && arrangeAll(), true);

// --- the keys ---------------------------------------------------------------------------------------------------------

const isVisible = (item) => item.checkVisibility({ visibilityProperty: true });
const nextVisible = (items, at, by) => {
  for (let next = at + by; items[next]; next += by) if (isVisible(items[next])) return items[next];
};

// In the next row with items: the item of the same column, or the nearest one.
function findInRow(items, from, by) {
  const rows = [...new Set(items.map((item) => item.closest(ROW)))];
  const column = (item) => item.closest("td, th")?.cellIndex ?? items.filter((one) => one.closest(ROW) === item.closest(ROW)).indexOf(item);
  for (let at = rows.indexOf(from.closest(ROW)) + by; rows[at]; at += by) {
    const there = items.filter((item) => item.closest(ROW) === rows[at] && isVisible(item));
    const distance = (item) => Math.abs(column(item) - column(from));
    if (!there.length) continue;
    const nearest = Math.min(...there.map(distance));
    const near = there.filter((item) => distance(item) === nearest);
    return near.find((item) => item.type === from.type && item.tagName === from.tagName) ?? near[0]; // a cell may have two
  }
}

function findTarget(box, item, event) {
  const mode = box.dataset.roving;
  const items = itemsOf(box);
  const isGrid = mode === "grid";
  const line = isGrid ? items.filter((one) => one.closest(ROW) === item.closest(ROW)) : items;
  const by = MOVES[mode]?.[event.key];
  if (by) return nextVisible(line, line.indexOf(item), by);
  const ends = isGrid && !event.ctrlKey ? line : items;
  if (event.key === "Home") return nextVisible(ends, -1, 1);
  if (event.key === "End") return nextVisible(ends, ends.length, -1);
  if (isGrid && event.key === "ArrowUp") return findInRow(items, item, -1);
  if (isGrid && event.key === "ArrowDown") return findInRow(items, item, 1);
}

// A key that moves the caret inside the text of a field belongs to the field.
function isForText({ key, target }) {
  if (!target.matches(TYPING)) return false;
  if (!itemsOf(target.closest("[data-roving]")).includes(target) || target.selectionStart == null) return true;
  if (key === "ArrowLeft") return target.selectionStart > 0;
  if (key === "ArrowRight") return target.selectionEnd < target.value.length;
  return key === "Home" || key === "End";
}

const KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"]);

document.addEventListener("keydown", (event) => {
  if (!KEYS.has(event.key) || isIgnored(event) || event.altKey || event.metaKey || event.shiftKey) return;
  if (event.ctrlKey && event.key !== "Home" && event.key !== "End") return;
  const box = event.target.closest?.("[data-roving]");
  if (!box || isForText(event) || isScrolling(event.target)) return;
  const target = findTarget(box, event.target, event);
  if (!target) return;
  event.preventDefault();
  target.focus();
  if (target.matches(TYPING)) target.select?.();
  target.scrollIntoView({ block: "nearest", inline: "nearest" });
});

arrangeAll();
