// The command palette: actions of this page, other pages, and search results of the server.
import { fill, gettext, ngettext } from "../common/i18n.js";
import { dropKeys, holdKeys } from "../common/key_queue.js";
import { PanelError, checkAnswer } from "../common/panel.js";
import { pressable } from "../common/shortcuts.js";
import { writeMessage } from "../common/ui.js";

const dialog = document.getElementById("palette");
const box = document.getElementById("palette-box");
const list = document.getElementById("palette-list");
const status = document.getElementById("palette-status");
const MAX_SHOWN = 60;
const DESCRIPTIVE = 10; // characters of a name that needs no description
const RECENT = 5;
const MAX_RUNS = 12;
const WORDS = /\p{Script=Han}{2}|.{3}/u; // a button label that is more than a symbol
const APART = " -_./:@";
const KINDS = { command: gettext("command"), page: gettext("page"), run: gettext("run"), step: gettext("step"), sample: gettext("sample"), view: gettext("view") };
let offered = [], results = [], shown = [], at = 0, searching;

// --- offered items ----------------------------------------------------------------------------------------------------

// The help lists the keys of this page first. They are added last, so they win.
const helpRows = [...document.querySelectorAll("#help [data-keys]")].reverse();
const described = new Map(
  helpRows.flatMap((row) => row.dataset.keys.split(" ").map((key) => [key, row.dataset.does])),
);

// The label of a button without its key.
function text(element) {
  const copy = element.cloneNode(true);
  for (const extra of copy.querySelectorAll("kbd, svg")) extra.remove();
  return copy.textContent.trim().replace(/\s+/g, " ");
}

function name(element) {
  const label = element.getAttribute("aria-label") || element.title;
  const written = text(element);
  return label || (WORDS.test(written) ? written : described.get(element.dataset.key)) || written;
}

const item = (kind, label, key, act, detail = "") => ({ kind, name: label, key, act, detail });

function collect() {
  const actions = pressable("[data-key]").map((element) => {
    const { key } = element.dataset;
    const press = () => (element.matches("input, select, textarea") ? element.focus() : element.click());
    return item("command", name(element), key, press, described.get(key) ?? "");
  });
  const links = pressable("[data-go], nav.tabs a").map((element) => {
    const keys = element.dataset.go ? `o ${element.dataset.go}` : "";
    return item("page", element.title || text(element), keys, () => element.click());
  });
  const once = new Map();
  for (const entry of [...actions, ...links]) if (!once.has(entry.kind + entry.name)) once.set(entry.kind + entry.name, entry);
  return [...once.values()];
}

// --- matching ---------------------------------------------------------------------------------------------------------

const begins = (name, index) => index === 0 || APART.includes(name[index - 1]);

function scattered(name, word) {
  let total = 0, last = -1;
  for (const letter of word) {
    const index = name.indexOf(letter, last + 1);
    if (index < 0) return null;
    total += (begins(name, index) ? 5 : 0) - Math.min(index - last - 1, 5);
    last = index;
  }
  return total;
}

// The score of a match; null if the item does not match. The server returns only candidates. Descriptions match by full words.
function rank(words, entry) {
  let total = 0;
  const label = entry.name.toLowerCase();
  for (const word of words.toLowerCase().split(/\s+/).filter(Boolean)) {
    const index = label.indexOf(word);
    let score;
    if (index >= 0) score = 100 + word.length + (begins(label, index) ? 50 : 0);
    else if (entry.detail.toLowerCase().includes(word)) score = 20;
    else score = scattered(label, word);
    if (score === null) return null;
    total += score;
  }
  return total;
}

// Actions that only match by scattered letters or their description are listed after the results of the server.
const isClose = (words, entry) => words.toLowerCase().split(/\s+/).every((word) => entry.name.toLowerCase().includes(word));

// The matches, best first; equal scores keep their order.
function sortMatches(words, items, view = (entry) => entry) {
  const matches = items.map((entry) => [rank(words, view(entry)), entry]).filter(([score]) => score !== null);
  return matches.sort(([a], [b]) => b - a).map(([, entry]) => entry);
}

function findMatches() {
  const words = box.value.trim();
  const actions = sortMatches(words, offered);
  const of = (kind, all) => all.filter((entry) => entry.kind === kind);
  if (!words) return [...of("page", actions), ...results.slice(0, RECENT), ...of("command", actions)];
  const found = results.filter(({ kind }) => kind !== "step");
  const [close, distant] = [true, false].map((wanted) => actions.filter((entry) => isClose(words, entry) === wanted));
  return [...of("step", results), ...close, ...found, ...distant].slice(0, MAX_SHOWN);
}

// Enter waits for the results of the current words.
const search = () => holdKeys(loadResults(), ({ key }) => key !== "Enter");

async function loadResults() {
  searching?.abort();
  searching = new AbortController();
  const words = box.value.trim();
  const query = new URLSearchParams({ q: words, run: dialog.dataset.run ?? "" });
  try {
    const response = await fetch(`${dialog.dataset.url}?${query}`, { signal: searching.signal });
    checkAnswer(response);
    const entries = (await response.json()).results;
    const withProject = ({ name, detail }) => ({ name: `${detail} ${name}`, detail: "" });
    const runs = sortMatches(words, entries.filter(({ kind }) => kind === "run"), withProject);
    const best = [...runs.slice(0, MAX_RUNS), ...entries.filter(({ kind }) => kind !== "run")];
    const act = (url) => (newTab) => (newTab ? open(url) : location.assign(url));
    results = best.map((entry) => ({ ...item(entry.kind, entry.name, "", act(entry.url), entry.detail), url: entry.url }));
    renderList();
  } catch (error) {
    if (error.name === "AbortError") return;
    dropKeys(); // Enter was meant for a result of these words
    results = [];
    renderList();
    const unreachable = gettext("Could not load the runs. Server unreachable.");
    writeMessage(status, error instanceof PanelError ? error.message : unreachable);
  }
}

// --- rendering --------------------------------------------------------------------------------------------------------

function option(entry, index) {
  const row = Object.assign(document.createElement("div"), { id: `palette-${index}`, className: "palette-row" });
  row.setAttribute("role", "option");
  row.dataset.at = index;
  const kind = Object.assign(document.createElement("span"), { className: "kind muted", textContent: KINDS[entry.kind] });
  const label = Object.assign(document.createElement("bdi"), { className: "clip", textContent: entry.name });
  const description = entry.kind === "command" && entry.name.length >= DESCRIPTIVE ? "" : entry.detail;
  const detail = Object.assign(document.createElement("span"), { className: "muted clip detail", textContent: description });
  row.append(kind, label, detail);
  for (const key of entry.key.split(" ").filter(Boolean)) row.append(Object.assign(document.createElement("kbd"), { textContent: key }));
  return row;
}

function renderList() {
  const before = shown[at];
  shown = findMatches();
  const isSame = (entry) => entry.name === before.name && entry.url === before.url; // two runs may have one name
  at = Math.max(0, at && before ? shown.findIndex(isSame) : 0);
  list.replaceChildren(...shown.map(option));
  const count = fill(ngettext("{count} result", "{count} results", shown.length), { count: shown.length });
  const name = box.value.trim().slice(0, 60);
  status.textContent = shown.length ? count : fill(gettext("No results for “{name}”."), { name });
  choose(at);
}

function choose(index) {
  list.children[at]?.removeAttribute("aria-selected");
  at = shown.length ? (index + shown.length) % shown.length : 0;
  const row = list.children[at];
  row?.setAttribute("aria-selected", "true");
  row?.scrollIntoView({ block: "nearest" });
  if (row) box.setAttribute("aria-activedescendant", row.id);
  else box.removeAttribute("aria-activedescendant");
}

function runItem(index, newTab) {
  const entry = shown[index];
  if (!entry) return;
  dialog.close();
  entry.act(newTab);
}

const MOVES = {
  ArrowDown: () => at + 1, ArrowUp: () => at - 1, PageDown: () => Math.min(at + 10, shown.length - 1), PageUp: () => Math.max(at - 10, 0),
};

box.addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key in MOVES) choose(MOVES[event.key]());
  else if (event.key === "Enter") runItem(at, event.ctrlKey || event.metaKey);
  else return;
  event.preventDefault();
});
box.addEventListener("input", () => {
  at = 0;
  renderList();
  search();
});
list.addEventListener("click", (event) => {
  const row = event.target.closest("[data-at]");
  if (row) runItem(Number(row.dataset.at), event.ctrlKey || event.metaKey);
});
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

// The dialog is already open, so no typed character is lost.
export function installPalette() {
  offered = collect();
  at = 0;
  renderList();
  search();
}
