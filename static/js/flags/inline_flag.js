// Flagging and undo on pages that list responses: a digit saves with that reason, Enter focuses the comment, Esc closes.
import { MESSAGE_OF_ERROR, showMessage, writeMessage } from "../common/ui.js";
import { isTurnedOff } from "../common/keyboard_layout.js";
import { isPlainClick } from "../common/panel.js";
import { postForm } from "../common/post.js";

const box = document.getElementById("flag-here");
const form = box.querySelector("form");
const problem = box.querySelector("[data-message]");
let openings = 0, sending = 0; // which opening of the box is sent: once, and its answer does not close a later one

function open(link) {
  openings += 1;
  form.reset();
  problem.textContent = "";
  form.action = link.dataset.flagHere;
  const response = link.closest("[data-id]");
  form.elements.samples.value = response.dataset.id;
  box.querySelector("[data-response]").textContent = response.getAttribute("aria-label");
  box.showModal();
  form.focus(); // otherwise Enter would press the first button
}

// The page reloads its responses on `deck:flagged`.
async function send(sent, submitter) {
  const own = sent === form ? openings : 0, isShown = () => box.open && own === openings;
  if (own && own === sending) return;
  sending = own;
  try {
    const result = await postForm(sent, {}, submitter);
    if (isShown()) box.close();
    showMessage(result.message);
    document.dispatchEvent(new CustomEvent("deck:flagged"));
  } catch (error) {
    if (isShown()) writeMessage(problem, error.message);
    else showMessage(error.message, MESSAGE_OF_ERROR);
  } finally {
    if (sending === own) sending = 0;
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-flag-here]");
  if (!link || !isPlainClick(event)) return;
  event.preventDefault();
  open(link);
});

document.addEventListener("submit", (event) => {
  if (event.target !== form && !event.target.matches("[data-undo]")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});

box.addEventListener("click", (event) => event.target.closest("[data-flag-close]") && box.close());

box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select") || isTurnedOff(event.key)) return;
  const reason = box.querySelector(`[data-reason="${CSS.escape(event.key)}"]`);
  if (reason) event.repeat || reason.click(); // a held key decides once
  else if (event.key === "Enter" && !event.target.closest("button")) form.elements.text.focus();
  else return;
  event.preventDefault();
});
