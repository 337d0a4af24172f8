// Flagging: f opens the box, a digit gives the reason and goes on, Enter goes to the text, Esc closes.
import { onEscape } from "./keys.js";
import { move } from "./reader.js";

const box = () => document.getElementById("flag-box");
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
  if (event.target.closest("[data-flag-close]")) box().open = false;
});

// Before the ordinary keys: while the box is open, digits and Enter are its own.
document.addEventListener(
  "keydown",
  (event) => {
    const found = box();
    if (!found?.open || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const reason = found.querySelector(`[data-reason="${CSS.escape(event.key)}"]`);
    if (reason) goOn = true;
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
  if (goOn) move(1);
  goOn = false;
});
