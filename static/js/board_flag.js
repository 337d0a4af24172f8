// Flagging a response where it stands on the board: a digit gives the reason, Enter goes to the text, Esc leaves.
import { say } from "./frame.js";
import { post } from "./post.js";

const box = document.getElementById("board-flag");
const form = box?.querySelector("form");
let settled;

// `then` is called when the flag stands.
export function open(id, then) {
  settled = then;
  form.reset();
  form.elements.samples.value = id;
  box.showModal();
  form.focus(); // else Enter would press the first button
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const told = await post(form, {}, event.submitter);
    box.close();
    say(told.said);
    settled();
  } catch (error) {
    say(error.message);
  }
});

box?.addEventListener("click", (event) => event.target.closest("[data-flag-close]") && box.close());

box?.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
  const reason = box.querySelector(`[data-reason="${CSS.escape(event.key)}"]`);
  if (reason) reason.click();
  else if (event.key === "Enter" && !event.target.closest("button")) form.elements.text.focus();
  else return;
  event.preventDefault();
});
