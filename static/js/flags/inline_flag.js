// Flagging and undo on pages that list responses: a digit saves with that reason, Enter focuses the comment, Esc closes.
import { MESSAGE_OF_ERROR, showMessage, writeMessage } from "../common/ui.js";
import { isTurnedOff } from "../common/keyboard_layout.js";
import { isPlainClick } from "../common/panel.js";
import { postForm } from "../common/post.js";

const box = document.getElementById("flag-here");
const form = box.querySelector("form");
const problem = box.querySelector("[data-message]");
const sending = new Set(); // a response is flagged once, and the answer does not close the box of another response
const identify = (sent) => sent.elements.samples?.value ?? sent.action;

function open(link) {
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
  const id = identify(sent), isShown = () => box.open && identify(form) === id;
  if (sending.has(id)) return;
  sending.add(id);
  try {
    const result = await postForm(sent, {}, submitter);
    if (isShown()) box.close();
    showMessage(result.message);
    document.dispatchEvent(new CustomEvent("deck:flagged"));
  } catch (error) {
    if (isShown()) writeMessage(problem, error.message);
    else showMessage(error.message, MESSAGE_OF_ERROR);
  } finally {
    sending.delete(id);
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
