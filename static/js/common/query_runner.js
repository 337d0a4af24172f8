// Runs the query of a box without a page load.
//
// A chosen query, also one with Enter, gets a history entry, so that Back undoes it. A query that is still typed replaces
// the current entry, and its errors are not shown. Half a word changes nothing.
import { gettext } from "./i18n.js";
import { dropKeys, holdKeys } from "./key_queue.js";
import { buildPanelHeaders, buildUrl, requestPanel, swapPanel } from "./panel.js";
import { showRequestError } from "./ui.js";

const TYPING_PAUSE = 150; // ms
const NUMBER = /^-?[\w.]+(<=|>=|!=|<|>|=|:)-?\d+(\.\d+)?$/; // `score<0.2`, but not `score<0.`

export const getParameter = (name, url = location.href) => new URL(url, location.href).searchParams.get(name) ?? "";

const isQuoted = (text) => (text.match(/"/g)?.length ?? 0) % 2 > 0;

// Whether the word before the cursor is unfinished: a term counts when a space, a number or a known value ends it.
function isHalf(box) {
  const text = box.value.slice(0, box.selectionStart);
  const word = text.match(/\S*$/)[0].normalize("NFKC"); // full-width signs of an input method are signs of the query
  return isQuoted(text) || !(word === "" || word.endsWith('"') || NUMBER.test(word.replace(/^\(+|\)+$/g, "")));
}

// `panel` shows the result, `#q-error` the error. `buildAddress(q)` returns the URL of a query. `onShown` is called after a
// result is on the page. Returns { ask }, which runs the query of a URL that a link or a filter names.
export function attachQuery(box, { panel, buildAddress, onShown = () => {} }) {
  let running, typing, asked; // `asked`: the URL of the last request
  let before = ""; // the URL from before the user began to type

  function ask(url, isTyped = false) {
    clearTimeout(typing);
    running?.abort();
    running = new AbortController();
    asked = url;
    const from = before || location.href;
    if (!isTyped) before = "";
    return holdKeys(run(url, isTyped, from, running.signal));
  }

  // Returns whether the result is on the page.
  async function run(url, isTyped, from, signal) {
    try {
      const html = await loadResult(url, signal);
      if (html === null || signal.aborted) return false;
      if (isTyped) before = from;
      else if (buildUrl({ sel: "", start: "" }, from) !== url) addHistoryEntry(from);
      history.replaceState({ htmx: true }, "", url);
      showError("");
      swapPanel(panel, html);
      onShown({ isTyped });
      return true;
    } catch (error) {
      if (signal.aborted || isTyped) return false;
      if (from !== location.href) before = from;
      showError(error.html ?? "");
      if (!error.html) showRequestError(error, gettext("The query was not run: server unreachable."));
      dropKeys(); // they were meant for the new list
      box.focus();
      return false;
    }
  }

  const shownStep = () => buildPanelHeaders(panel)["X-Shown-Step"];

  // If the page has moved to a newer step meanwhile, that step is queried.
  async function loadResult(url, signal) {
    const step = shownStep();
    const html = await requestPanel(panel, url, { signal });
    return step === shownStep() || signal.aborted ? html : loadResult(url, signal);
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

  function runTyped() {
    const q = box.value.trim();
    if (q !== getParameter("q").trim()) ask(buildAddress(box.value), true);
    else if (q !== getParameter("q", asked).trim()) running?.abort(); // the box has the query of the page again
  }

  function scheduleRun() {
    clearTimeout(typing);
    typing = setTimeout(runTyped, TYPING_PAUSE);
  }

  box.addEventListener("input", () => {
    clearTimeout(typing);
    showError("");
    if (!isHalf(box)) scheduleRun();
  });
  box.addEventListener("deck:term", scheduleRun);

  // What was typed and run before the field was left can be undone too.
  box.addEventListener("blur", () => {
    clearTimeout(typing);
    const now = location.href;
    if (!before) return;
    addHistoryEntry(before);
    history.replaceState({ htmx: true }, "", now);
  });

  // Typed before this script.
  if (document.activeElement === box && box.value !== getParameter("q")) box.dispatchEvent(new Event("input"));
  return { ask };
}
