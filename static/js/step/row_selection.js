// Selection of several rows: x or a click at the left edge selects one, shift-click or X a range. f flags all of them.
import { showMessage, writeMessage } from "../common/ui.js";
import { fill, gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { saveToOutbox } from "../common/outbox.js";

const picked = new Set();
let anchor, every = false, bar, opening;

const rows = () => [...document.querySelectorAll("#rows tr[data-id]")];
const chosen = () => document.querySelector("#rows tr[aria-selected]")?.dataset.id;
const total = () => Number(document.querySelector("#samples[data-total], #found[data-total]")?.dataset.total ?? 0);
const query = () => new URLSearchParams(location.search).get("q") ?? "";
const flagsUrl = () => location.pathname.replace(/steps\/[^/]+\/$/, "flags/");

// Loads the bar from the server, which knows the project's reasons.
function openBar() {
  return (opening ??= fetch(flagsUrl(), { credentials: "same-origin" })
    .then((response) => (response.ok && !response.redirected ? response.text() : Promise.reject(response.status)))
    .then((html) => {
      bar = Object.assign(document.createElement("div"), { id: "picked", innerHTML: html });
      document.querySelector(".left").append(bar);
      bar.addEventListener("submit", flag);
    })
    .catch(() => {
      opening = undefined;
      showMessage(gettext("Selecting samples to flag needs the annotator role and a server connection."));
      throw new Error("no bar");
    }));
}

async function change(act) {
  await openBar();
  act();
  render();
}

export const toggle = (id = chosen()) => id && change(() => {
  every = false;
  if (!picked.delete(id)) picked.add(id);
  anchor = id;
});

// Selects all rows from the last selected one to this one.
export const selectRange = (id = chosen()) => id && change(() => {
  const ids = rows().map((row) => row.dataset.id);
  const from = ids.indexOf(anchor ?? chosen()), to = ids.indexOf(id);
  every = false;
  for (const other of ids.slice(Math.min(from < 0 ? to : from, to), Math.max(from, to) + 1)) picked.add(other);
  anchor = id;
});

function clear() {
  picked.clear();
  every = false;
  anchor = undefined;
  bar?.querySelector("#picked-flags")?.removeAttribute("open");
  render();
}

function render() {
  if (!bar) return;
  const all = total();
  bar.hidden = !picked.size && !every;
  bar.querySelector("[data-picked-count]").textContent = (every ? all : picked.size).toLocaleString("en");
  bar.querySelector("[data-picked-all]").textContent = all.toLocaleString("en");
  bar.querySelector("[data-pick-every]").setAttribute("aria-pressed", every);
  for (const row of rows()) row.toggleAttribute("data-picked", every || picked.has(row.dataset.id));
}

function scope() {
  if (!every) return { samples: [...picked].join() };
  const here = new URLSearchParams(location.search);
  const everyStep = document.getElementById("step-page").dataset.word === "all";
  const step = everyStep ? "" : document.querySelector("#samples")?.dataset.step ?? "";
  const split = document.querySelector("#query [name=split]")?.value ?? here.get("split") ?? "";
  return { all: "1", q: query(), step, split, attempt: here.get("attempt") ?? "", seen: total() };
}

// Saved in order with other flags, so that an undo after it undoes it. Rows that are selected meanwhile stay selected.
async function flag(event) {
  event.preventDefault();
  const form = event.target;
  const message = form.querySelector("[data-message]");
  const flagged = every ? null : [...picked];
  const comment = form.elements.text.value;
  const saved = saveToOutbox(form, {}, event.submitter, scope());
  message.textContent = "";
  form.reset();
  form.closest("details").open = false;
  try {
    const result = await saved;
    unselect(flagged);
    showMessage(result.undoable ? fill(gettext("{message} Press u to undo."), result) : result.message);
  } catch (error) {
    form.elements.text.value ||= comment;
    form.closest("details").open = true;
    writeMessage(message, error.message);
  }
}

// `ids` is null if all of the query were flagged.
function unselect(ids) {
  if (!ids) return every && clear();
  for (const id of ids) picked.delete(id);
  render();
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-pick-none]")) clear();
  else if (event.target.closest("[data-pick-range]")) selectRange();
  else if (event.target.closest("[data-pick-every]")) {
    every = !every;
    render();
  }
});

onEscape(() => {
  if (!bar || bar.hidden) return false;
  clear();
  return true;
});

// After another query, or at another step, samples selected one by one remain selected, "all of the query" does not.
const describeList = () => `${document.getElementById("found")?.dataset.step} ${query()}`;
let lastList = describeList();
function update() {
  if (lastList !== describeList()) every = false;
  lastList = describeList();
  render();
}
document.addEventListener("htmx:afterSettle", update);
document.addEventListener("deck:settled", update);
