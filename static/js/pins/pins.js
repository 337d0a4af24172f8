// The pin box: p opens it and focuses the note, Enter pins, Esc closes.
import { onEscape } from "../common/shortcuts.js";

const box = () => document.getElementById("pin-box");

// Immediately, not after the browser's toggle: a fast user has pressed the next key by then.
function toggle(details) {
  details.open = !details.open;
  if (details.open) (details.querySelector("#pin-note") ?? details.querySelector("summary")).focus();
}

function close() {
  const details = box();
  if (!details?.open) return false;
  details.open = false;
  details.querySelector("summary").focus();
  return true;
}

onEscape(close);
document.addEventListener("click", (event) => {
  const details = box();
  if (event.target.closest("#pin-box > summary")) {
    event.preventDefault();
    toggle(details);
  } else if (event.target.closest("[data-pin-close]")) close();
  else if (details?.open && !event.target.closest("#pin")) details.open = false;
});
