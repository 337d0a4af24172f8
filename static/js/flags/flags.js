// Flagging: f opens the box, a digit gives the reason and goes on, Enter goes to the text, Esc closes. With rows
// selected, f flags them all. u undoes.
import { forget } from "../sample/prefetch.js";
import { say } from "../common/ui.js";
import { onEscape } from "../common/shortcuts.js";
import { post } from "../common/post.js";
import { move, show } from "../sample/reader.js";

const EDGE = 18; // px at a row's left that select it
const many = () => document.querySelector("#picked:not([hidden]) #picked-flags");
const box = () => many() ?? document.getElementById("flag-box");
const picks = () => import("../step/row_selection.js");
let goOn = false;

function open() {
  const found = box();
  if (!found) return;
  found.open = !found.open;
  if (!found.open) return;
  found.scrollIntoView({ block: "nearest" });
  found.querySelector("form").focus({ preventScroll: true }); // else Enter would follow a link that has the focus
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-flag-open]")) open();
  if (event.target.closest("[data-flag-close]")) event.target.closest("details").open = false;
  if (event.target.closest("[data-pick]")) picks().then((picks) => picks.toggle());
});

// Before the reader's own clicks: shift-click reaches from the last selected row, the left edge selects a row.
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
    picks().then((picks) => (event.shiftKey ? picks.reach(row.dataset.id) : picks.toggle(row.dataset.id)));
  },
  true,
);

// Before the ordinary keys: while the box is open, digits and Enter are its own.
document.addEventListener(
  "keydown",
  (event) => {
    const found = box();
    if (!found?.open || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const reason = found.querySelector(`[data-reason="${CSS.escape(event.key)}"]`);
    if (reason) goOn = found.id === "flag-box";
    if (reason) reason.click();
    else if (event.key === "Enter" && !event.target.closest("button, a")) found.querySelector("[name=text]").focus();
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  },
  true,
);

onEscape(() => {
  const found = box();
  if (!found?.open) return false;
  found.open = false;
  found.querySelector("[name=text]")?.blur();
  return true;
});

document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.detail.elt.matches?.("[data-flag-form]") || !event.detail.successful) return;
  const found = box();
  if (document.querySelector("#flags .error-line")) return;
  if (found) found.open = false;
  forget(document.querySelector("#sample article")?.dataset.id);
  if (goOn) move(1);
  goOn = false;
});

// What was undone is said; where it was one sample, that one is shown again. After "fine" the next one is.
document.addEventListener("submit", async (event) => {
  const fine = event.target.matches("[data-fine]");
  if (event.defaultPrevented || !(fine || event.target.matches("[data-undo]"))) return;
  event.preventDefault();
  const id = document.querySelector("#sample article").dataset.id;
  try {
    const told = await post(event.target);
    say(told.said);
    document.dispatchEvent(new CustomEvent("deck:said", { detail: fine ? { fine: id } : { undone: told.sample } }));
    if (fine) move(1);
    else if (told.sample && document.getElementById("step-page")) show(told.sample);
  } catch (error) {
    say(error.message);
  }
});
