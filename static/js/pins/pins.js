// The pin box: p opens it and focuses the note, Enter pins, Esc closes.
import { onEscape } from "../common/shortcuts.js";

const box = () => document.getElementById("pin-box");

// Immediately, not after the browser's toggle: a fast user has pressed the next key by then.
function toggle(found) {
  found.open = !found.open;
  if (found.open) (found.querySelector("#pin-note") ?? found.querySelector("summary")).focus();
}

function close() {
  const found = box();
  if (!found?.open) return false;
  found.open = false;
  found.querySelector("summary").focus();
  return true;
}

onEscape(close);
document.addEventListener("click", (event) => {
  const found = box();
  if (event.target.closest("#pin-box > summary")) {
    event.preventDefault();
    toggle(found);
  } else if (event.target.closest("[data-pin-close]")) close();
  else if (found?.open && !event.target.closest("#pin")) found.open = false;
});
