// The sample beside the table: choosing rows by mouse and keys, ways to read, the drawer, the width.
import { forget, look, paneOf } from "./prefetch.js";
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { address, ask, plain, rested } from "../common/panel.js";

const page = document.getElementById("step-page");
const pane = document.getElementById("sample");
const AHEAD = 16, BEHIND = 4;
let loading, writing, towards = 1, chosen = pane?.querySelector("article")?.dataset.id;

const rows = () => [...document.querySelectorAll("#rows tr[data-id]")];
const current = () => rows().find((row) => row.dataset.id === chosen);
const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";

function mark() {
  for (const row of rows()) {
    if (row.dataset.id === chosen) row.setAttribute("aria-selected", "true");
    else row.removeAttribute("aria-selected");
  }
}

// --- the pane ---------------------------------------------------------------------------------------------------------

// How the response is read; `at` and `as` are of one response and not of the next.
const READING = ["view", "vs", "by", "at", "as"];
const KEPT = ["view", "vs", "by"];

const base = () => page?.dataset.sampleUrl ?? location.pathname;
const how = (extra = {}) => ({ q: parameter("q"), ...Object.fromEntries(KEPT.map((name) => [name, parameter(name)])), ...extra });
const paneAddress = (id, extra) => address(how(extra), base().replace("ID", id));
const asRead = () => address(how(), "/");

// Another sample, or the same in another way; `extra` names what changes of `READING`.
export async function show(id, extra = {}, byPerson = true) {
  loading?.abort();
  const { signal } = (loading = new AbortController());
  const same = !id || id === chosen;
  const url = paneAddress(id ?? chosen, extra);
  const known = same || Object.keys(extra).length ? undefined : paneOf(id, asRead());
  if (!same) {
    chosen = id;
    mark();
  }
  if (byPerson) {
    write({ start: "", ...(page ? { sel: chosen } : {}), at: "", as: "", ...extra });
    page?.classList.add("reading");
  }
  try {
    const html = (await known) ?? (signal.aborted ? null : await ask(pane, url, { signal }));
    if (html == null || signal.aborted) return;
    if (!same) pane.scrollTop = 0; // after the change it would lay the new text out at once, and once more to paint
    pane.innerHTML = html;
    window.htmx.process(pane);
    document.dispatchEvent(new CustomEvent("deck:settled", { detail: { panel: pane } }));
    rested(ahead, 200);
  } catch (error) {
    if (error.name !== "AbortError") say(gettext("The sample could not be read; the server does not answer."));
  }
}

// Browsers take few address changes a second, and a key that is held down makes many.
function write(changes) {
  clearTimeout(writing);
  const now = () => history.replaceState(null, "", address(changes));
  if (READING.some((name) => changes[name]) || "view" in changes) now();
  else writing = setTimeout(now, 100);
}

// The rows that are read next: those that the last key goes to first, and a few on its other side.
function near() {
  const all = rows();
  const at = all.indexOf(current());
  if (at < 0) return [];
  const after = all.slice(at + 1, at + 1 + (towards > 0 ? AHEAD : BEHIND));
  const before = all.slice(Math.max(0, at - (towards < 0 ? AHEAD : BEHIND)), at).reverse();
  const [first, second] = towards > 0 ? [after, before] : [before, after];
  return [...first.slice(0, 2), ...second.slice(0, 1), ...first.slice(2), ...second.slice(1)].map((row) => row.dataset.id);
}

function ahead() {
  if (page) look(near, asRead(), (ids) => address({ ...how(), of: ids.join() }, page.dataset.aheadUrl));
}

// Another query or order: what is read is the first of what was found, with its hits marked.
const asked = () => parameter("q") + "\n" + parameter("sort");
let answered = asked();

document.addEventListener("htmx:afterSettle", (event) => {
  if (!page || event.target.id !== "result" || asked() === answered) return;
  answered = asked();
  forget();
  const first = rows()[0]?.dataset.id;
  if (first && !pane.contains(document.activeElement)) show(first, {}, false);
});

export function move(by) {
  const all = rows();
  const at = all.indexOf(current());
  const row = all[Math.max(0, at + by)];
  towards = Math.sign(by);
  if (!row) return document.querySelector(".sentinel")?.scrollIntoView({ block: "nearest" });
  row.scrollIntoView({ block: "nearest" });
  if (all.length - at < 10) document.querySelector(".sentinel")?.scrollIntoView({ block: "nearest" }), row.scrollIntoView({ block: "nearest" });
  show(row.dataset.id);
}

const begin = () => rested(ahead, 500); // after what the page itself needs is painted
if (document.readyState === "complete") begin();
else addEventListener("load", begin);

// --- clicks -----------------------------------------------------------------------------------------------------------

const CLICKS = {
  "[data-move]": (found) => move(Number(found.dataset.move)),
  "#rows tr[data-id]": (found) => show(found.dataset.id),
  "[data-sample]": (found) => show(found.dataset.sample),
  "[data-past]": (found) => location.assign(address({ sel: found.dataset.past }, found.dataset.step)),
  "[data-close]": () => closed("full") || closed("reading"),
  "[data-wide]": () => page.classList.toggle("full"),
};

// A way to read: by its own link, on the step's page and on the sample's own alike.
function turn(link) {
  const said = Object.fromEntries(READING.filter((name) => name in link.dataset).map((name) => [name, link.dataset[name]]));
  const others = { ...(said.view === "diff" ? {} : { vs: "" }), ...(said.view === "tokens" ? {} : { by: "" }) };
  show(chosen, { ...others, ...said, view: said.view === "raw" ? "" : said.view });
}

document.addEventListener("click", (event) => {
  if (!pane || !plain(event)) return;
  const view = event.target.closest("[data-view]");
  if (view) return event.preventDefault(), turn(view);
  if (!page || event.target.closest("[data-board]")) return;
  for (const [selector, act] of Object.entries(CLICKS)) {
    const found = event.target.closest(selector);
    if (!found) continue;
    event.preventDefault();
    return act(found);
  }
});

// Other responses of the group, by the cells' order.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-sibling]");
  if (!button) return;
  const cells = [...document.querySelectorAll(".cell")];
  const at = cells.findIndex((cell) => cell.hasAttribute("aria-current"));
  cells[at + Number(button.dataset.sibling)]?.click();
});

onEscape(() => closed("full") || (innerWidth <= 1100 && closed("reading")));

function closed(name) {
  if (!page?.classList.contains(name)) return false;
  page.classList.remove(name);
  current()?.scrollIntoView({ block: "nearest" });
  return true;
}

// --- the width --------------------------------------------------------------------------------------------------------

const columns = document.querySelector(".columns");
const divider = document.querySelector("[data-divider]");
const width = (share) => {
  const kept = Math.min(80, Math.max(25, share));
  columns.style.setProperty("--left", `${kept}%`);
  divider.setAttribute("aria-valuenow", Math.round(kept));
  localStorage.setItem("left", kept);
};

if (divider) {
  const kept = Number(localStorage.getItem("left"));
  if (kept) width(kept);
  divider.addEventListener("pointerdown", (down) => {
    divider.setPointerCapture(down.pointerId);
    const follow = (event) => width((100 * event.clientX) / innerWidth);
    divider.addEventListener("pointermove", follow);
    divider.addEventListener("pointerup", () => divider.removeEventListener("pointermove", follow), { once: true });
  });
  divider.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (by) width((Number(localStorage.getItem("left")) || 58) + by);
  });
}

document.addEventListener("deck:settled", mark);
document.addEventListener("htmx:afterSettle", mark);
// What happens to other steps changes no pane here. A ring without a version says that some may have been missed, but
// the first of them only that the page is heard.
let heard = false;
function stale({ version, step }) {
  if (version == null) return heard || !(heard = true);
  return step != null && (page?.dataset.word === "all" || String(step) === page?.dataset.step);
}

document.addEventListener("deck:ring", ({ detail }) => detail.filter(stale).length && forget());
document.addEventListener("htmx:afterSettle", (event) => event.target.id === "flags" && forget(chosen));
// One's own act is known before its ring: the sample that it was about, or all.
document.addEventListener("deck:said", ({ detail }) => forget(detail.fine ?? detail.undone));
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.target.id !== "result") return;
  forget();
  const first = rows()[0];
  if (first && !current()) show(first.dataset.id, {}, false);
});
mark();
if (parameter("sel") && page) {
  page.classList.add("reading");
  current()?.scrollIntoView({ block: "center" });
}
