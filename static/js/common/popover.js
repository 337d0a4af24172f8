// Popovers: a click outside or Esc closes them. A text field in one filters its list.
import { isIgnored } from "./keyboard_layout.js";

document.addEventListener("input", (event) => {
  const among = event.target.dataset?.narrow;
  if (!among) return;
  const word = event.target.value.trim().toLowerCase();
  for (const item of document.querySelectorAll(among)) item.hidden = !item.textContent.toLowerCase().includes(word);
});

document.addEventListener("keydown", (event) => {
  const open = document.querySelector("details.popover[open]");
  if (event.key !== "Escape" || !open || isIgnored(event)) return;
  if (document.querySelector("dialog[open]")) return; // it is in front
  open.open = false;
  open.querySelector("summary").focus();
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);
document.addEventListener("click", (event) => {
  const outside = [...document.querySelectorAll("details.popover[open]")].filter((box) => !box.contains(event.target));
  for (const box of outside) box.open = false;
});

// Enter in the field selects the first match instead of sending the form.
document.addEventListener("keydown", (event) => {
  const among = event.target.dataset?.narrow;
  if (!among || event.key !== "Enter" || isIgnored(event)) return;
  event.preventDefault();
  [...document.querySelectorAll(among)].find((item) => !item.hidden)?.querySelector("a, input")?.click();
});
