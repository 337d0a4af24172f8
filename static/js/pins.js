// The pin box: p opens it at its note, Enter pins, Esc closes.
import { onEscape } from "./keys.js";

const box = () => document.getElementById("pin-box");

document.addEventListener(
  "toggle",
  (event) => {
    if (event.target.id === "pin-box" && event.target.open) event.target.querySelector("#pin-note")?.focus();
  },
  true,
);

function close() {
  const found = box();
  if (!found?.open) return false;
  found.open = false;
  found.querySelector("summary").focus();
  return true;
}

onEscape(close);
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-pin-close]")) close();
  else if (box()?.open && !event.target.closest("#pin-box")) box().open = false;
});
