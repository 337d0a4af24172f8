// The review page: a decision is saved and the next undecided sample opens. The list and its count update.
import { forget } from "../sample/prefetch.js";
import { MESSAGE_OF_ERROR, reportDrafts, showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { requestPanel, swapPanel } from "../common/panel.js";
import { saveToOutbox } from "../common/outbox.js";
import { isPaneLoading } from "../sample/pane.js";
import { showSample } from "../sample/reader.js";

const form = document.querySelector("[data-decision-url]");
const list = document.getElementById("queue");
const sending = new Set(); // { id } of each decision that is not saved yet: one may be changed before
const isSending = (id) => [...sending].some((decision) => decision.id === id);

const openId = () => document.querySelector("#sample article")?.dataset.id;
const readDraft = () => [form.elements.text.value, form.elements.label.value];
const rows = () => [...list.querySelectorAll("tr[data-id]")];

// A comment and label that are not sent belong to their sample.
const drafts = new Map(); // id -> [comment, label]
let shown = openId(); // what is typed for it is in the form
reportDrafts(() => [...drafts].some(([id, [comment]]) => comment && id !== shown));
function restoreDraft(id) {
  if (drafts.has(id)) [form.elements.text.value, form.elements.label.value] = drafts.get(id);
}
document.addEventListener("deck:settled", () => {
  const id = openId();
  if (!id || id === shown) return;
  drafts.set(shown, readDraft());
  form.reset();
  restoreDraft(id);
  shown = id;
});

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

// The server does not know of them when it renders the list.
document.addEventListener("deck:settled", () => sending.forEach(({ id }) => done(id, true)));

// A decision concerns the sample on the screen. While it is being saved the next sample opens; keys pressed before that
// sample is shown wait for it.
async function saveDecision(fields, submitter) {
  const id = openId();
  if (isPaneLoading()) return showMessage(gettext("The sample is still loading."));
  if (!id) return;
  const decision = { id };
  sending.add(decision);
  openReasons(false);
  form.action = form.dataset.decisionUrl.replace("ID", id);
  const request = saveToOutbox(form, { sample: id }, submitter, fields).finally(() => sending.delete(decision));
  const draft = readDraft();
  const row = nextRow(id);
  if (row) form.reset(); // else the sample stays, and the same key again would save it without its comment
  done(id, true);
  row?.scrollIntoView({ block: "nearest" });
  if (row) showSample(row.dataset.id);
  try {
    const result = await request;
    showMessage(row ? result.message : gettext("Batch complete."));
  } catch (error) {
    done(id, isSending(id));
    showMessage(error.message, MESSAGE_OF_ERROR);
    if (isSending(id)) return; // a newer decision
    drafts.set(id, draft);
    await showSample(id);
    if (openId() === id && !form.elements.text.value) restoreDraft(id);
  }
  forget(id);
  if (!sending.size) await refresh();
}

// Runs before the handler of flags.js, where OK moves to the next row. Here it moves to the next undecided row.
document.addEventListener(
  "submit",
  (event) => {
    const isOk = event.target.matches("[data-ok]");
    if (!isOk && event.target !== form) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    saveDecision(isOk ? { fine: "1" } : {}, isOk ? null : event.submitter);
  },
  true,
);

// On narrow screens the reasons open above the bar at the bottom.
const more = form.querySelector("[data-verdict-more]");
function openReasons(yes) {
  form.classList.toggle("open", yes);
  more.setAttribute("aria-expanded", yes);
}
more.addEventListener("click", () => openReasons(!form.classList.contains("open")));

document.addEventListener("deck:decided", refresh);
