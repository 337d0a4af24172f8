// Flagging: f opens the box, a digit saves with that reason and moves to the next sample, Enter focuses the comment, Esc
// closes. If rows are selected, f flags all of them. u undoes.
import { forget } from "../sample/prefetch.js";
import { showMessage } from "../common/ui.js";
import { onEscape } from "../common/shortcuts.js";
import { postForm } from "../common/post.js";
import { move, show } from "../sample/reader.js";

const EDGE = 18; // px at the left of a row where a click selects it
const many = () => document.querySelector("#picked:not([hidden]) #picked-flags");
const box = () => many() ?? document.getElementById("flag-box");
const picks = () => import("../step/row_selection.js");
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
  if (event.target.closest("[data-pick]")) picks().then((picks) => picks.toggle());
});

// Runs before the click handlers of reader.js: shift-click selects a range of rows, the left edge selects one row.
document.addEventListener(
  "click",
  (event) => {
    const row = event.target.closest?.("#rows tr[data-id]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const edge = event.clientX && event.clientX - row.getBoundingClientRect().left < EDGE;
    if (!event.shiftKey && !edge) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    getSelection().removeAllRanges();
    picks().then((picks) => (event.shiftKey ? picks.selectRange(row.dataset.id) : picks.toggle(row.dataset.id)));
  },
  true,
);

// Runs before the shortcuts: while the box is open, digits and Enter belong to it.
document.addEventListener(
  "keydown",
  (event) => {
    const details = box();
    if (!details?.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) return;
    const reason = details.querySelector(`[data-reason="${CSS.escape(event.key)}"]`);
    if (reason) moveOn = details.id === "flag-box";
    if (reason) reason.click();
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

document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.detail.elt.matches?.("[data-flag-form]") || !event.detail.successful) return;
  const details = box();
  if (document.querySelector("#flags .error-line")) return;
  if (details) details.open = false;
  forget(document.querySelector("#sample article")?.dataset.id);
  if (moveOn) move(1);
  moveOn = false;
});

// Undo shows a message and, if it concerned one sample, that sample. An OK decision moves to the next sample.
document.addEventListener("submit", async (event) => {
  const fine = event.target.matches("[data-fine]");
  if (event.defaultPrevented || !(fine || event.target.matches("[data-undo]"))) return;
  event.preventDefault();
  const id = document.querySelector("#sample article").dataset.id;
  try {
    const result = await postForm(event.target);
    showMessage(result.said);
    document.dispatchEvent(new CustomEvent("deck:decided", { detail: fine ? { fine: id } : { undone: result.sample } }));
    if (fine) move(1);
    else if (result.sample && document.getElementById("step-page")) show(result.sample);
  } catch (error) {
    showMessage(error.message);
  }
});
