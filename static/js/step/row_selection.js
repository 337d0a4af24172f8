// Several rows at once: x or the row's left edge selects one, shift-click or X a run of them, f then flags them all.
import { say } from "../common/ui.js";
import { fill, gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { post } from "../common/post.js";

const picked = new Set();
let anchor, every = false, bar, opening;

const rows = () => [...document.querySelectorAll("#rows tr[data-id]")];
const chosen = () => document.querySelector("#rows tr[aria-selected]")?.dataset.id;
const total = () => Number(document.querySelector("#samples[data-total], #found[data-total]")?.dataset.total ?? 0);
const query = () => new URLSearchParams(location.search).get("q") ?? "";
const mine = () => location.pathname.replace(/steps\/[^/]+\/$/, "flags/");

// The bar's markup is the server's: it knows the project's reasons.
function open() {
  return (opening ??= fetch(mine(), { credentials: "same-origin" })
    .then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)))
    .then((html) => {
      bar = Object.assign(document.createElement("div"), { id: "picked", innerHTML: html });
      document.querySelector(".left").append(bar);
      bar.addEventListener("submit", flag);
    })
    .catch(() => {
      opening = undefined;
      say(gettext("Selecting is for flagging, which needs the role annotator, and the server."));
      throw new Error("no bar");
    }));
}

async function change(act) {
  await open();
  act();
  draw();
}

export const toggle = (id = chosen()) => id && change(() => {
  every = false;
  if (!picked.delete(id)) picked.add(id);
  anchor = id;
});

// All rows from the last one that was selected to this one.
export const reach = (id = chosen()) => id && change(() => {
  const ids = rows().map((row) => row.dataset.id);
  const from = ids.indexOf(anchor ?? chosen()), to = ids.indexOf(id);
  every = false;
  for (const one of ids.slice(Math.min(from < 0 ? to : from, to), Math.max(from, to) + 1)) picked.add(one);
  anchor = id;
});

function clear() {
  picked.clear();
  every = false;
  anchor = undefined;
  bar?.querySelector("#picked-flags")?.removeAttribute("open");
  draw();
}

function draw() {
  if (!bar) return;
  const there = total();
  bar.hidden = !picked.size && !every;
  bar.querySelector("[data-picked-count]").textContent = (every ? there : picked.size).toLocaleString("en");
  bar.querySelector("[data-picked-all]").textContent = there.toLocaleString("en");
  bar.querySelector("[data-pick-every]").setAttribute("aria-pressed", every);
  for (const row of rows()) row.toggleAttribute("data-picked", every || picked.has(row.dataset.id));
}

function scope() {
  if (!every) return { samples: [...picked].join() };
  const here = new URLSearchParams(location.search);
  const step = document.getElementById("step-page").dataset.word === "all" ? "" : document.querySelector("#samples")?.dataset.step ?? "";
  const split = document.querySelector("#query [name=split]")?.value ?? here.get("split") ?? "";
  return { all: "1", q: query(), step, split, attempt: here.get("attempt") ?? "", seen: total() };
}

async function flag(event) {
  event.preventDefault();
  const form = event.target;
  const said = form.querySelector("[data-said]");
  said.textContent = "";
  try {
    const told = await post(form, scope(), event.submitter);
    form.reset();
    clear();
    say(told.undoable ? fill(gettext("{said} u undoes it."), told) : told.said);
  } catch (error) {
    said.textContent = error.message;
  }
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-pick-none]")) clear();
  else if (event.target.closest("[data-pick-range]")) reach();
  else if (event.target.closest("[data-pick-every]")) {
    every = !every;
    draw();
  }
});

onEscape(() => {
  if (!bar || bar.hidden) return false;
  clear();
  return true;
});

// Another query finds other samples: what was selected one by one stays, "all of the query" does not.
let asked = query();
document.addEventListener("htmx:afterSettle", () => {
  if (asked !== query()) every = false;
  asked = query();
  draw();
});
document.addEventListener("deck:settled", draw);
