// The sample next to the table: row selection by mouse and keys, views, drawer, width.
import { forget, getPane, prefetch } from "./prefetch.js";
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { buildUrl, isPlainClick, requestPanel, whenIdle } from "../common/panel.js";

const page = document.getElementById("step-page");
const pane = document.getElementById("sample");
const AHEAD = 16, BEHIND = 4;
let loading, writing, direction = 1, chosen = pane?.querySelector("article")?.dataset.id;

const rows = () => [...document.querySelectorAll("#rows tr[data-id]")];
const current = () => rows().find((row) => row.dataset.id === chosen);
const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";

function markRows() {
  for (const row of rows()) {
    if (row.dataset.id === chosen) row.setAttribute("aria-selected", "true");
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
export async function show(id, extra = {}, byUser = true) {
  loading?.abort();
  const { signal } = (loading = new AbortController());
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
  }
  try {
    const html = (await cached) ?? (signal.aborted ? null : await requestPanel(pane, url, { signal }));
    if (html == null || signal.aborted) return;
    if (!same) pane.scrollTop = 0; // after the swap, this would cause a second layout
    pane.innerHTML = html;
    window.htmx.process(pane);
    document.dispatchEvent(new CustomEvent("deck:settled", { detail: { panel: pane } }));
    whenIdle(prefetchNear, 200);
  } catch (error) {
    if (error.name !== "AbortError") showMessage(gettext("Could not load the sample. Server unreachable."));
  }
}

// Browsers limit the number of URL changes per second, and a held key causes many.
function write(changes) {
  clearTimeout(writing);
  const now = () => history.replaceState(null, "", buildUrl(changes));
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

// After another query or order, the first match opens, with its hits marked.
const currentQuery = () => parameter("q") + "\n" + parameter("sort");
let shownQuery = currentQuery();

document.addEventListener("htmx:afterSettle", (event) => {
  if (!page || event.target.id !== "result" || currentQuery() === shownQuery) return;
  shownQuery = currentQuery();
  forget();
  const first = rows()[0]?.dataset.id;
  if (first && !pane.contains(document.activeElement)) show(first, {}, false);
});

export function move(by) {
  const all = rows();
  const at = all.indexOf(current());
  const row = all[Math.max(0, at + by)];
  direction = Math.sign(by);
  const loadMore = () => document.querySelector(".sentinel")?.scrollIntoView({ block: "nearest" });
  if (!row) return loadMore();
  row.scrollIntoView({ block: "nearest" });
  if (all.length - at < 10) loadMore(), row.scrollIntoView({ block: "nearest" });
  show(row.dataset.id);
}

const start = () => whenIdle(prefetchNear, 500); // after the page itself is painted
if (document.readyState === "complete") start();
else addEventListener("load", start);

// --- clicks -----------------------------------------------------------------------------------------------------------

const CLICKS = {
  "[data-move]": (found) => move(Number(found.dataset.move)),
  "#rows tr[data-id]": (found) => show(found.dataset.id),
  "[data-sample]": (found) => show(found.dataset.sample),
  "[data-past]": (found) => location.assign(buildUrl({ sel: found.dataset.past }, found.dataset.step)),
  "[data-close]": () => close("full") || close("reading"),
  "[data-wide]": () => page.classList.toggle("full"),
};

// Switches to the view of a link, on the step page and on the sample page.
function switchView(link) {
  const params = Object.fromEntries(VIEW.filter((name) => name in link.dataset).map((name) => [name, link.dataset[name]]));
  const others = { ...(params.view === "diff" ? {} : { vs: "" }), ...(params.view === "tokens" ? {} : { by: "" }) };
  show(chosen, { ...others, ...params, view: params.view === "raw" ? "" : params.view });
}

document.addEventListener("click", (event) => {
  if (!pane || !isPlainClick(event)) return;
  const view = event.target.closest("[data-view]");
  if (view) return event.preventDefault(), switchView(view);
  if (!page || event.target.closest("[data-board]")) return;
  for (const [selector, act] of Object.entries(CLICKS)) {
    const found = event.target.closest(selector);
    if (!found) continue;
    event.preventDefault();
    return act(found);
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

onEscape(() => close("full") || (innerWidth <= 1100 && close("reading")));

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
document.addEventListener("deck:decided", ({ detail }) => forget(detail.fine ?? detail.undone));
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.target.id !== "result") return;
  forget();
  const first = rows()[0];
  if (first && !current()) show(first.dataset.id, {}, false);
});
markRows();
if (parameter("sel") && page) {
  page.classList.add("reading");
  current()?.scrollIntoView({ block: "center" });
}
