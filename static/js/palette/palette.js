// The palette: what this page can do, its pages, and what the server finds. Everything by keyboard, and by mouse.
import { fill, gettext, ngettext } from "../common/i18n.js";
import { pressable } from "../common/shortcuts.js";

const dialog = document.getElementById("palette");
const box = document.getElementById("palette-box");
const list = document.getElementById("palette-list");
const said = document.getElementById("palette-said");
const MOST = 60;
const TELLING = 10; // characters of a name that needs no further word
const RECENT = 5;
const MAX_RUNS = 12;
const WORDS = /\p{Script=Han}{2}|.{3}/u; // on a button: more than a sign
const APART = " -_./:@";
const KINDS = { here: gettext("here"), page: gettext("page"), run: gettext("run"), step: gettext("step"), sample: gettext("sample") };
let offered = [], places = [], shown = [], at = 0, asking;

// --- what there is ----------------------------------------------------------------------------------------------------

// Keys of this page stand first in the help, so they are put in last.
const described = new Map(
  [...document.querySelectorAll("#help [data-keys]")].reverse().flatMap((row) => row.dataset.keys.split(" ").map((key) => [key, row.dataset.does])),
);

// What is written on a button, without its key.
function text(one) {
  const copy = one.cloneNode(true);
  for (const extra of copy.querySelectorAll("kbd, svg")) extra.remove();
  return copy.textContent.trim().replace(/\s+/g, " ");
}

function name(one) {
  const label = one.getAttribute("aria-label") || one.title;
  const written = text(one);
  return label || (WORDS.test(written) ? written : described.get(one.dataset.key)) || written;
}

const item = (kind, label, key, act, detail = "") => ({ kind, name: label, key, act, detail });

function collect() {
  const actions = pressable("[data-key]").map((one) => {
    const does = described.get(one.dataset.key) ?? "";
    return item("here", name(one), one.dataset.key, () => (one.matches("input, select, textarea") ? one.focus() : one.click()), does);
  });
  const links = pressable("[data-go], nav.tabs a").map((one) => item("page", one.title || text(one), one.dataset.go ? `o ${one.dataset.go}` : "", () => one.click()));
  const once = new Map();
  for (const one of [...actions, ...links]) if (!once.has(one.kind + one.name)) once.set(one.kind + one.name, one);
  return [...once.values()];
}

// --- what matches -----------------------------------------------------------------------------------------------------

const begins = (name, place) => place === 0 || APART.includes(name[place - 1]);

function scattered(name, word) {
  let total = 0, last = -1;
  for (const letter of word) {
    const place = name.indexOf(letter, last + 1);
    if (place < 0) return null;
    total += (begins(name, place) ? 5 : 0) - Math.min(place - last - 1, 5);
    last = place;
  }
  return total;
}

// How well a name matches, null where it does not. The server only finds candidates; of a description whole words count.
function rank(asked, one) {
  let total = 0;
  const label = one.name.toLowerCase();
  for (const word of asked.toLowerCase().split(/\s+/).filter(Boolean)) {
    const place = label.indexOf(word);
    const found = place >= 0 ? 100 + word.length + (begins(label, place) ? 50 : 0) : one.detail.toLowerCase().includes(word) ? 20 : scattered(label, word);
    if (found === null) return null;
    total += found;
  }
  return total;
}

// The best first; those that match alike stay in their order.
function ranked(asked, rows, named = (one) => one) {
  const found = rows.map((one) => [rank(asked, named(one)), one]).filter(([score]) => score !== null);
  return found.sort(([a], [b]) => b - a).map(([, one]) => one);
}

function matching() {
  const asked = box.value.trim();
  const mine = ranked(asked, offered);
  const of = (kind, all) => all.filter((one) => one.kind === kind);
  if (!asked) return [...of("page", mine), ...places.slice(0, RECENT), ...of("here", mine)];
  return [...of("step", places), ...mine, ...places.filter(({ kind }) => kind !== "step")].slice(0, MOST);
}

async function ask() {
  asking?.abort();
  asking = new AbortController();
  const asked = box.value.trim();
  const query = new URLSearchParams({ q: asked, run: dialog.dataset.run ?? "" });
  try {
    const answer = await fetch(`${dialog.dataset.url}?${query}`, { signal: asking.signal });
    if (!answer.ok || answer.redirected) throw new Error(answer.status);
    const found = (await answer.json()).places;
    const runs = ranked(asked, found.filter(({ kind }) => kind === "run"), ({ name, detail }) => ({ name: `${detail} ${name}`, detail: "" }));
    const best = [...runs.slice(0, MAX_RUNS), ...found.filter(({ kind }) => kind !== "run")];
    places = best.map((one) => item(one.kind, one.name, "", (apart) => (apart ? open(one.url) : location.assign(one.url)), one.detail));
    draw();
  } catch (error) {
    if (error.name !== "AbortError") said.textContent = gettext("Runs cannot be asked for; the server does not answer.");
  }
}

// --- what is shown ----------------------------------------------------------------------------------------------------

function option(one, index) {
  const row = Object.assign(document.createElement("div"), { id: `palette-${index}`, className: "palette-row" });
  row.setAttribute("role", "option");
  row.dataset.at = index;
  const kind = Object.assign(document.createElement("span"), { className: "kind muted", textContent: KINDS[one.kind] });
  const label = Object.assign(document.createElement("bdi"), { className: "clip", textContent: one.name });
  const detail = Object.assign(document.createElement("span"), { className: "muted clip detail", textContent: one.kind === "here" && one.name.length >= TELLING ? "" : one.detail });
  row.append(kind, label, detail);
  for (const key of one.key.split(" ").filter(Boolean)) row.append(Object.assign(document.createElement("kbd"), { textContent: key }));
  return row;
}

function draw() {
  const before = shown[at]?.name;
  shown = matching();
  at = Math.max(0, at && before ? shown.findIndex((one) => one.name === before) : 0);
  list.replaceChildren(...shown.map(option));
  const count = fill(ngettext("{count} to choose from", "{count} to choose from", shown.length), { count: shown.length });
  said.textContent = shown.length ? count : fill(gettext("Nothing here is called “{name}”."), { name: box.value.trim().slice(0, 60) });
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

function take(index, apart) {
  const one = shown[index];
  if (!one) return;
  dialog.close();
  one.act(apart);
}

const MOVES = { ArrowDown: () => at + 1, ArrowUp: () => at - 1, PageDown: () => Math.min(at + 10, shown.length - 1), PageUp: () => Math.max(at - 10, 0) };

box.addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key in MOVES) choose(MOVES[event.key]());
  else if (event.key === "Enter") take(at, event.ctrlKey || event.metaKey);
  else return;
  event.preventDefault();
});
box.addEventListener("input", () => {
  at = 0;
  draw();
  ask();
});
list.addEventListener("click", (event) => {
  const row = event.target.closest("[data-at]");
  if (row) take(Number(row.dataset.at), event.ctrlKey || event.metaKey);
});
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

// The dialog is open already, so that what is typed meanwhile is not lost.
export function begin() {
  offered = collect();
  at = 0;
  draw();
  ask();
}
