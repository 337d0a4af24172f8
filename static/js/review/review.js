// Review: a verdict saves and opens the next sample that nothing was said of; the list and its count follow.
import { forget } from "../sample/prefetch.js";
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { ask, place } from "../common/panel.js";
import { post } from "../common/post.js";
import { show } from "../sample/reader.js";

const form = document.querySelector("[data-verdict]");
const list = document.getElementById("queue");
const sending = new Set();

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

const done = (id, yes) => rows().find((row) => row.dataset.id === id)?.toggleAttribute("data-done", yes);

// A verdict is on what can be read; while it is on its way the next sample opens, and a key that comes before that
// sample is there says nothing.
async function judge(fields, submitter) {
  const id = here();
  if (!id || sending.has(id)) return;
  sending.add(id);
  form.action = form.dataset.verdict.replace("ID", id);
  const answer = post(form, fields, submitter);
  form.reset();
  done(id, true);
  const row = next(id);
  row?.scrollIntoView({ block: "nearest" });
  if (row) show(row.dataset.id);
  try {
    const told = await answer;
    say(row ? told.said : gettext("All of this batch is done."));
  } catch (error) {
    done(id, false);
    say(error.message);
    show(id);
  }
  forget(id);
  sending.delete(id);
  if (!sending.size) await refresh();
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
