// The query box of samples: runs queries without a page load, also those of charts and filters; menus, brushes.
import { gettext } from "../common/i18n.js";
import { dropKeys, holdKeys } from "../common/key_queue.js";
import { onEscape } from "../common/shortcuts.js";
import { buildUrl, requestPanel, swapPanel } from "../common/panel.js";
import { showMessage } from "../common/ui.js";
import { attachCompletion } from "../common/query_completion.js";

const form = document.getElementById("query");
const box = document.getElementById("q");
const MENUS = ".menu[open]";
const completion = attachCompletion(box);

// --- running a query --------------------------------------------------------------------------------------------------

const TYPING_PAUSE = 150; // ms
const KEPT = ["sort", "parts", "top"]; // hidden fields of the form, for a page without scripts
const result = document.getElementById("result");
const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";
const address = (q) => buildUrl({ q, sel: "", start: "" });
let running, typing, before = ""; // `before`: the URL from before the user began to type

// Runs the query of a URL. A chosen query, also one with Enter, gets a history entry, so that Back undoes it. A query that
// is still typed replaces the current entry, and its errors are not shown.
function ask(url, isTyped = false) {
  clearTimeout(typing);
  running?.abort();
  running = new AbortController();
  const from = before || location.href;
  if (!isTyped) before = "";
  return holdKeys(run(url, isTyped, from, running.signal));
}

async function run(url, isTyped, from, signal) {
  try {
    const html = await requestPanel(result, url, { signal });
    if (html === null || signal.aborted) return;
    if (isTyped) before = from;
    else if (buildUrl({ sel: "", start: "" }, from) !== url) addHistoryEntry(from);
    history.replaceState({ htmx: true }, "", url);
    showError("");
    swapPanel(result, html);
    document.getElementById("table").scrollTop = 0;
  } catch (error) {
    if (signal.aborted || isTyped) return;
    if (from !== location.href) before = from;
    showError(error.html ?? "");
    if (!error.html) showMessage(gettext("The query was not run: server unreachable."));
    dropKeys(); // they were meant for the new list
    box.focus();
  }
}

function addHistoryEntry(from) {
  before = "";
  history.replaceState({ htmx: true }, "", from);
  history.pushState({ htmx: true }, "", from);
}

function showError(html) {
  document.getElementById("q-error").innerHTML = html;
  box.setAttribute("aria-invalid", String(Boolean(html)));
}

// A link, a chart or a filter.
function go(href) {
  completion.close();
  const url = buildUrl({ sel: "", start: "" }, new URL(href, location.href).href);
  const wanted = new URL(url, location.href).searchParams;
  box.value = wanted.get("q") ?? "";
  for (const name of KEPT) {
    const field = form.querySelector(`[name=${name}]`);
    field.value = wanted.get(name) ?? "";
    field.disabled = !field.value;
  }
  ask(url);
}

const write = (q) => go(buildUrl({ q }));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  completion.close();
  ask(address(box.value));
  document.getElementById("table").focus({ preventScroll: true }); // the next keys are for the list
});

// --- typing -----------------------------------------------------------------------------------------------------------

const NUMBER = /^-?[\w.]+(<=|>=|!=|<|>|=|:)-?\d+(\.\d+)?$/; // `score<0.2`, but not `score<0.`
const isQuoted = (text) => (text.match(/"/g)?.length ?? 0) % 2 > 0;

// Half a word changes nothing: a term counts when a space, a number or a known value ends it.
function isHalf() {
  const text = box.value.slice(0, box.selectionStart);
  const word = text.match(/\S*$/)[0].normalize("NFKC"); // full-width signs of an input method are signs of the query
  return isQuoted(text) || !(word === "" || word.endsWith('"') || NUMBER.test(word.replace(/^\(+|\)+$/g, "")));
}

function runTyped() {
  if (box.value.trim() !== parameter("q").trim()) ask(address(box.value), true);
}

box.addEventListener("input", () => {
  clearTimeout(typing);
  showError("");
  if (!isHalf()) typing = setTimeout(runTyped, TYPING_PAUSE);
});
box.addEventListener("deck:term", () => {
  clearTimeout(typing);
  typing = setTimeout(runTyped, TYPING_PAUSE);
});

// What was typed and run before the field was left can be undone too.
box.addEventListener("blur", () => {
  clearTimeout(typing);
  const now = location.href;
  if (!before) return;
  addHistoryEntry(before);
  history.replaceState({ htmx: true }, "", now);
});

// --- links and menus ----------------------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("#result a[data-ask]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  link.closest(".menu")?.removeAttribute("open");
  go(link.getAttribute("href"));
});

document.addEventListener("click", (event) => {
  const stop = event.target.closest?.("[data-stop]");
  stop?.closest("[data-searching]").setAttribute("data-stopped", "");
  stop?.replaceWith("· " + gettext("stopped"));
  for (const menu of document.querySelectorAll(MENUS)) if (!menu.contains(event.target)) menu.open = false;
});

onEscape(() => {
  const menu = document.querySelector(MENUS);
  if (!menu) return false;
  menu.open = false;
  menu.querySelector("summary").focus();
  return true;
});

// The next part of a search of all steps: ignored if the query has changed since, or the user stopped the search.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { elt, requestConfig, xhr } = event.detail;
  if (elt.id !== "result" || !xhr.responseURL) return;
  const sent = new URL(xhr.responseURL).searchParams;
  const late = ["q", "sort"].some((name) => (sent.get(name) ?? "") !== parameter(name));
  if (late || requestConfig.elt.hasAttribute("data-stopped")) event.detail.shouldSwap = false;
});

if (document.activeElement === box && box.value !== parameter("q")) box.dispatchEvent(new Event("input")); // typed before this script
import("./brush.js").then(({ attachBrush }) => {
  attachBrush(write);
  form.toggleAttribute("data-scripted", true);
});
