// Review: a verdict saves and opens the next sample that nothing was said of; the list and its count follow.
import { say } from "./frame.js";
import { gettext } from "./i18n.js";
import { ask, place } from "./panel.js";
import { post } from "./post.js";
import { show } from "./reader.js";

const form = document.querySelector("[data-verdict]");
const list = document.getElementById("queue");
let busy = false;

const here = () => document.querySelector("#sample article")?.dataset.id;
const rows = () => [...list.querySelectorAll("tr[data-id]")];

// From the one that is open on, and then from the beginning.
function next(id) {
  const all = rows();
  const at = all.findIndex((row) => row.dataset.id === id);
  return [...all.slice(at + 1), ...all.slice(0, Math.max(at, 0))].find((row) => !row.hasAttribute("data-done"));
}

async function refresh() {
  const html = await ask(list, list.dataset.url, { quiet: true });
  if (html) place(list, html);
}

async function judge(fields, submitter) {
  const id = here();
  if (busy || !id) return;
  busy = true;
  try {
    form.action = form.dataset.verdict.replace("ID", id);
    const told = await post(form, fields, submitter);
    rows().find((row) => row.dataset.id === id)?.setAttribute("data-done", "");
    form.reset();
    const row = next(id);
    row?.scrollIntoView({ block: "nearest" });
    say(row ? told.said : gettext("All of this batch is done."));
    if (row) await show(row.dataset.id);
    await refresh();
  } catch (error) {
    say(error.message);
  } finally {
    busy = false;
  }
}

// Before the pane's own: there "fine" goes to the next row, here to the next that is left.
document.addEventListener(
  "submit",
  (event) => {
    const fine = event.target.matches("[data-fine]");
    if (!fine && event.target !== form) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    judge(fine ? { fine: "1" } : {}, fine ? null : event.submitter);
  },
  true,
);

document.addEventListener("deck:said", refresh);
