// The sample next to the table: row selection by mouse and keys, views, drawer, width.
import { forget, getPane, prefetch } from "./prefetch.js";
import { cancelPane, loadPane } from "./pane.js";
import { onEscape } from "../common/shortcuts.js";
import { buildUrl, isPlainClick, whenIdle } from "../common/panel.js";

const page = document.getElementById("step-page");
const pane = document.getElementById("sample");
const AHEAD = 16, BEHIND = 4;
let writing, direction = 1, place = "", chosen = pane?.querySelector("article")?.dataset.id;

const rows = () => [...document.querySelectorAll("#rows tr[data-id]")];
const current = () => rows().find((row) => row.dataset.id === chosen);
const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";

function markRows() {
  for (const row of rows()) {
    if (row.dataset.id === chosen) row.setAttribute("aria-selected", "true"), (place = chosen);
    else row.removeAttribute("aria-selected");
  }
}

// --- the pane ---------------------------------------------------------------------------------------------------------

// Parameters of the view. `at` and `as` belong to one response, the others also apply to the next one.
const VIEW = ["view", "vs", "by", "at", "as"];
const LASTING = ["view", "vs", "by"];

const base = () => page?.dataset.sampleUrl ?? location.pathname;
const lasting = () => Object.fromEntries(LASTING.map((name) => [name, parameter(name)]));
const viewParams = (extra = {}) => ({ q: parameter("q"), ...lasting(), ...extra });
const paneUrl = (id, extra) => buildUrl(viewParams(extra), base().replace("ID", id));
const viewKey = () => buildUrl(viewParams(), "/");

// Shows another sample, or the same in another view; `extra` has the changes of `VIEW`.
export async function showSample(id, extra = {}, byUser = true) {
  const same = !id || id === chosen;
  const url = paneUrl(id ?? chosen, extra);
  const cached = same || Object.keys(extra).length ? undefined : getPane(id, viewKey());
  if (!same) {
    chosen = id;
    markRows();
  }
  if (byUser) {
    write({ start: "", ...(page ? { sel: chosen } : {}), at: "", as: "", ...extra });
    page?.classList.add("reading");
    document.dispatchEvent(new CustomEvent("deck:chosen"));
  }
  await loadPane(url, cached, !same);
  whenIdle(prefetchNear, 200);
}

// The page shows another step: all its parts arrive together.
document.addEventListener("deck:moved", ({ detail }) => {
  cancelPane();
  clearTimeout(writing);
  forget();
  chosen = detail.id;
});

// Browsers limit the number of URL changes per second, and a held key causes many.
function write(changes) {
  clearTimeout(writing);
  const now = () => history.replaceState(history.state, "", buildUrl(changes));
  if (VIEW.some((name) => changes[name]) || "view" in changes) now();
  else writing = setTimeout(now, 100);
}

// The ids of the rows that are probably opened next: first in the direction of the last key, then a few on the other side.
function near() {
  const all = rows();
  const at = all.indexOf(current());
  if (at < 0) return [];
  const after = all.slice(at + 1, at + 1 + (direction > 0 ? AHEAD : BEHIND));
  const before = all.slice(Math.max(0, at - (direction < 0 ? AHEAD : BEHIND)), at).reverse();
  const [first, second] = direction > 0 ? [after, before] : [before, after];
  return [...first.slice(0, 2), ...second.slice(0, 1), ...first.slice(2), ...second.slice(1)].map((row) => row.dataset.id);
}

function prefetchNear() {
  if (page) prefetch(near, viewKey(), (ids) => buildUrl({ ...viewParams(), of: ids.join() }, page.dataset.aheadUrl));
}

// After another query or order, the first match opens, with its hits marked; also if the open sample is no longer listed.
const currentQuery = () => parameter("q") + "\n" + parameter("sort");
let shownQuery = currentQuery();

function openFirst() {
  const isNew = currentQuery() !== shownQuery;
  const isGone = !current() && (!chosen || chosen === place);
  shownQuery = currentQuery();
  if (isNew) clearTimeout(writing), forget();
  const first = rows()[0]?.dataset.id;
  if (first && (isNew ? !pane.contains(document.activeElement) : isGone)) showSample(first, {}, false);
}

document.addEventListener("deck:settled", ({ detail }) => page && detail.panel.id === "result" && openFirst());
document.addEventListener("htmx:afterSwap", ({ target }) => page && target.id === "result" && openFirst());
document.addEventListener("deck:followed", () => rows().length && showSample(rows()[0].dataset.id, {}, false));

// Moves from the open sample; if it is not in the list, from the last one that was.
export function moveSelection(by) {
  const all = rows();
  const at = all.indexOf(current() ?? document.getElementById(`r-${place}`));
  const row = all[Math.max(0, at + by)];
  direction = Math.sign(by);
  const loadMore = () => document.querySelector(".sentinel")?.scrollIntoView({ block: "nearest" });
  if (!row) return loadMore();
  row.scrollIntoView({ block: "nearest" });
  if (all.length - at < 10) loadMore(), row.scrollIntoView({ block: "nearest" });
  showSample(row.dataset.id);
}

export const hasList = () => Boolean(page && rows().length);

// Shows the next row, or the previous one, that contains the selector. False if there is none.
export async function showRowWith(selector, by) {
  const all = rows();
  const at = all.indexOf(current() ?? document.getElementById(`r-${place}`));
  const others = by > 0 ? all.slice(at + 1) : all.slice(0, Math.max(0, at)).reverse();
  const row = others.find((other) => other.querySelector(selector));
  direction = by;
  if (by > 0 && others.length < 10) document.querySelector(".sentinel")?.scrollIntoView({ block: "nearest" });
  if (!row) return false;
  row.scrollIntoView({ block: "nearest" });
  await showSample(row.dataset.id);
  return true;
}

const start = () => whenIdle(prefetchNear, 500); // after the page itself is painted
if (document.readyState === "complete") start();
else addEventListener("load", start);

// --- clicks -----------------------------------------------------------------------------------------------------------

const CLICKS = {
  "[data-move]": (link) => moveSelection(Number(link.dataset.move)),
  "#rows tr[data-id]": (row) => showSample(row.dataset.id),
  "[data-sample]": (link) => showSample(link.dataset.sample),
  "[data-past]": ({ dataset }) => location.assign(buildUrl({ sel: dataset.past }, dataset.step)),
  "[data-close]": () => close("full") || close("reading"),
  "[data-wide]": () => page.classList.toggle("full"),
};

// Switches to the view of a link, on the step page and on the sample page.
function switchView(link) {
  const params = Object.fromEntries(VIEW.filter((name) => name in link.dataset).map((name) => [name, link.dataset[name]]));
  const others = { ...(params.view === "diff" ? {} : { vs: "" }), ...(params.view === "tokens" ? {} : { by: "" }) };
  showSample(chosen, { ...others, ...params, view: params.view === "raw" ? "" : params.view });
}

document.addEventListener("click", (event) => {
  if (!pane || !isPlainClick(event)) return;
  const view = event.target.closest("[data-view]");
  if (view) return event.preventDefault(), switchView(view);
  if (!page || event.target.closest("[data-board]")) return;
  for (const [selector, act] of Object.entries(CLICKS)) {
    const element = event.target.closest(selector);
    if (!element) continue;
    event.preventDefault();
    return act(element);
  }
});

// Previous and next response of the group.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-sibling]");
  if (!button) return;
  const cells = [...document.querySelectorAll(".cell")];
  const at = cells.findIndex((cell) => cell.hasAttribute("aria-current"));
  cells[at + Number(button.dataset.sibling)]?.click();
});

// An open box is closed first. Its handler runs after this one.
const BOXES = "#flag-box[open], #picked-flags[open], #pin-box[open], form[data-find]:not([hidden])";
const hasOpenBox = () => [...document.querySelectorAll(BOXES)].some((box) => box.checkVisibility({ visibilityProperty: true }));
onEscape(() => !hasOpenBox() && (close("full") || (innerWidth <= 1100 && close("reading"))));

function close(name) {
  if (!page?.classList.contains(name)) return false;
  page.classList.remove(name);
  current()?.scrollIntoView({ block: "nearest" });
  return true;
}

// --- the width --------------------------------------------------------------------------------------------------------

const columns = document.querySelector(".columns");
const divider = document.querySelector("[data-divider]");
const setWidth = (share) => {
  const percent = Math.min(80, Math.max(25, share));
  columns.style.setProperty("--left", `${percent}%`);
  divider.setAttribute("aria-valuenow", Math.round(percent));
  localStorage.setItem("left", percent);
};

if (divider) {
  const stored = Number(localStorage.getItem("left"));
  if (stored) setWidth(stored);
  divider.addEventListener("pointerdown", (down) => {
    divider.setPointerCapture(down.pointerId);
    const follow = (event) => setWidth((100 * event.clientX) / innerWidth);
    divider.addEventListener("pointermove", follow);
    divider.addEventListener("pointerup", () => divider.removeEventListener("pointermove", follow), { once: true });
  });
  divider.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (by) setWidth((Number(localStorage.getItem("left")) || 58) + by);
  });
}

document.addEventListener("deck:settled", markRows);
document.addEventListener("htmx:afterSettle", markRows);
// Changes of other steps do not concern the cached panes. A notification without a version means that some may have been
// missed, except the first one, which only confirms the connection.
let confirmed = false;
function makesStale({ version, step }) {
  if (version == null) return confirmed || !(confirmed = true);
  return step != null && (page?.dataset.word === "all" || String(step) === page?.dataset.step);
}

document.addEventListener("deck:changed", ({ detail }) => detail.filter(makesStale).length && forget());
document.addEventListener("htmx:afterSettle", (event) => event.target.id === "flags" && forget(chosen));
// The user's own decision is known before its notification: forget that sample, or all.
document.addEventListener("deck:decided", ({ detail }) => forget(detail.ok ?? detail.undone));
markRows();
if (parameter("sel") && page) {
  page.classList.add("reading");
  current()?.scrollIntoView({ block: "center" });
}
