// The review page: a decision is saved and the next undecided sample opens. The list and its count update.
import { forget } from "../sample/prefetch.js";
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { requestPanel, swapPanel } from "../common/panel.js";
import { postForm } from "../common/post.js";
import { show } from "../sample/reader.js";

const form = document.querySelector("[data-verdict]");
const list = document.getElementById("queue");
const sending = new Set();

const here = () => document.querySelector("#sample article")?.dataset.id;
const rows = () => [...list.querySelectorAll("tr[data-id]")];

// The next undecided row after the open one, then from the start of the list.
function nextRow(id) {
  const all = rows();
  const at = all.findIndex((row) => row.dataset.id === id);
  return [...all.slice(at + 1), ...all.slice(0, Math.max(at, 0))].find((row) => !row.hasAttribute("data-done"));
}

async function refresh() {
  const html = await requestPanel(list, list.dataset.url, { quiet: true });
  if (html) swapPanel(list, html);
}

const done = (id, yes) => rows().find((row) => row.dataset.id === id)?.toggleAttribute("data-done", yes);

// A decision concerns the sample on the screen. While it is being saved the next sample opens; keys pressed before that
// sample is shown are ignored.
async function saveDecision(fields, submitter) {
  const id = here();
  if (!id || sending.has(id)) return;
  sending.add(id);
  form.action = form.dataset.verdict.replace("ID", id);
  const request = postForm(form, fields, submitter);
  form.reset();
  done(id, true);
  const row = nextRow(id);
  row?.scrollIntoView({ block: "nearest" });
  if (row) show(row.dataset.id);
  try {
    const result = await request;
    showMessage(row ? result.said : gettext("Batch complete."));
  } catch (error) {
    done(id, false);
    showMessage(error.message);
    show(id);
  }
  forget(id);
  sending.delete(id);
  if (!sending.size) await refresh();
}

// Runs before the handler of flags.js, where OK moves to the next row. Here it moves to the next undecided row.
document.addEventListener(
  "submit",
  (event) => {
    const fine = event.target.matches("[data-fine]");
    if (!fine && event.target !== form) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    saveDecision(fine ? { fine: "1" } : {}, fine ? null : event.submitter);
  },
  true,
);

document.addEventListener("deck:decided", refresh);
