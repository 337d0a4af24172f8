// Flagging: f opens the box, a digit saves with that reason and moves to the next sample, Enter focuses the comment, Esc
// closes. If rows are selected, f flags all of them. u undoes.
import { listUnsaved, saveToOutbox } from "../common/outbox.js";
import { forget } from "../sample/prefetch.js";
import { holdKeys } from "../common/key_queue.js";
import { isIgnored, isTurnedOff } from "../common/keyboard_layout.js";
import { gettext } from "../common/i18n.js";
import { requestPanel, swapPanel } from "../common/panel.js";
import { MESSAGE_OF_ERROR, reportDrafts, showMessage } from "../common/ui.js";
import { onEscape } from "../common/shortcuts.js";
import { isPaneLoading } from "../sample/pane.js";
import { moveSelection, showSample } from "../sample/reader.js";

const EDGE = 18; // px at the left of a row where a click selects it
const selectionBox = () => document.querySelector("#picked:not([hidden]) #picked-flags");
const box = () => selectionBox() ?? document.getElementById("flag-box");
const picks = () => holdKeys(import("../step/row_selection.js")); // f after x is for the selected rows
const openId = () => document.querySelector("#sample article")?.dataset.id;
const drafts = new Map(); // sample -> the comment that is not sent
reportDrafts(() => [...drafts.values()].some((text) => text));
let moveOn = false;

function open() {
  const details = box();
  if (!details) return;
  details.open = !details.open;
  if (!details.open) return;
  details.scrollIntoView({ block: "nearest" });
  details.querySelector("form").focus({ preventScroll: true }); // otherwise Enter would open a focused link
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-flag-open]")) open();
  if (event.target.closest("[data-flag-close]")) event.target.closest("details").open = false;
  if (event.target.closest("[data-pick]")) holdKeys(picks().then((picks) => picks.toggle()));
});

// Runs before the click handlers of reader.js: shift-click selects a range of rows, the left edge selects one row. Not on the
// page of a review, where each sample is decided by itself.
document.addEventListener(
  "click",
  (event) => {
    const row = event.target.closest?.(".step-page #rows tr[data-id]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const edge = event.clientX && event.clientX - row.getBoundingClientRect().left < EDGE;
    if (!event.shiftKey && !edge) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    getSelection().removeAllRanges();
    holdKeys(picks().then((picks) => (event.shiftKey ? picks.selectRange(row.dataset.id) : picks.toggle(row.dataset.id))));
  },
  true,
);

function pressReason(details, reason) {
  moveOn = details.id === "flag-box";
  reason.click();
}

// Runs before the shortcuts: while the box is open, digits and Enter belong to it.
document.addEventListener(
  "keydown",
  (event) => {
    const details = box();
    if (!details?.open || !details.checkVisibility({ visibilityProperty: true })) return; // a closed drawer may have an open box
    if (event.ctrlKey || event.metaKey || event.altKey || isIgnored(event) || isTurnedOff(event.key)) return;
    if (event.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
    const reason = details.querySelector(`[data-reason="${CSS.escape(event.key)}"]`);
    if (reason) event.repeat || pressReason(details, reason); // a held key decides once
    else if (event.key === "Enter" && !event.target.closest("button, a")) details.querySelector("[name=text]").focus();
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  },
  true,
);

onEscape(() => {
  const details = box();
  if (!details?.open) return false;
  details.open = false;
  details.querySelector("[name=text]")?.blur();
  return true;
});

// A flag with a reason opens the next sample at once; it is saved meanwhile.
async function flag(form, submitter) {
  const id = openId();
  drafts.delete(id);
  form.closest("details").open = false;
  const saved = saveToOutbox(form, { sample: id }, submitter);
  const comment = form.elements.text.value;
  form.reset();
  if (moveOn) moveSelection(1);
  moveOn = false;
  try {
    await saved;
  } catch (error) {
    showMessage(error.message, MESSAGE_OF_ERROR);
    if (!drafts.get(id)) drafts.set(id, comment);
    if (document.getElementById("step-page")) await showSample(id);
    showDraft();
  }
}

// The flags of the sample, if it is still open.
async function updateFlags(id) {
  forget(id);
  const flags = document.getElementById("flags");
  if (openId() !== id || isPaneLoading() || !flags) return;
  const html = await requestPanel(flags, flags.dataset.url, { quiet: true }).catch(() => null);
  if (html !== null && openId() === id && flags.isConnected) swapPanel(flags, html);
}

// A comment stays with its sample while others are read.
document.addEventListener("input", ({ target }) => {
  if (target.matches("#flag-box [name=text]")) drafts.set(openId(), target.value);
});
function showDraft() {
  const field = document.querySelector("#flag-box [name=text]"), text = drafts.get(openId());
  if (!field || !text || field.value) return;
  field.value = text;
  field.closest("details").open = true;
}
document.addEventListener("deck:settled", ({ detail }) => detail.panel.id === "sample" && showDraft());

// The pane says that the flags of its sample are not saved.
function showUnsaved() {
  const flags = document.getElementById("flags");
  flags?.querySelector(".error-line.unsaved-here")?.remove();
  if (!flags || !listUnsaved(openId()).length) return;
  const textContent = gettext("Your flag of this sample is not saved, retrying.");
  flags.prepend(Object.assign(document.createElement("p"), { className: "error-line unsaved-here", textContent }));
}
document.addEventListener("deck:unsaved", showUnsaved);
document.addEventListener("deck:settled", ({ detail }) => ["sample", "flags"].includes(detail.panel.id) && showUnsaved());
document.addEventListener("deck:saved", ({ detail }) => detail.item.sample && updateFlags(detail.item.sample));

document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || !event.target.matches("[data-flag-form]")) return;
  event.preventDefault();
  flag(event.target, event.submitter);
});

// Undo shows a message and, if it concerned one sample, that sample. An OK decision moves to the next sample at once.
document.addEventListener("submit", async (event) => {
  const isOk = event.target.matches("[data-ok]");
  if (event.defaultPrevented || !(isOk || event.target.matches("[data-undo]"))) return;
  event.preventDefault();
  const id = openId();
  const saved = saveToOutbox(event.target, isOk ? { sample: id } : { once: true }, event.submitter);
  if (isOk) moveSelection(1);
  try {
    const result = await saved;
    showMessage(result.message);
    document.dispatchEvent(new CustomEvent("deck:decided", { detail: isOk ? { ok: id } : { undone: result.sample } }));
    if (!isOk && result.sample && document.getElementById("step-page")) showSample(result.sample);
  } catch (error) {
    showMessage(error.message, MESSAGE_OF_ERROR);
    if (isOk && document.getElementById("step-page")) showSample(id);
  }
});
