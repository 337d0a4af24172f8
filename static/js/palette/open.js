// Ctrl+K, or ⌘K, opens the palette; what it can do is loaded then.
import { asleep } from "../common/keyboard_layout.js";

const dialog = document.getElementById("palette");
const button = document.querySelector("[data-palette]");

function open() {
  document.getElementById("palette-box").value = "";
  dialog.showModal();
  import("./palette.js").then((palette) => palette.begin());
}

const wanted = ({ key, code }) => key.toLowerCase() === "k" || (code === "KeyK" && key.codePointAt(0) > 0x24f);

document.addEventListener("keydown", (event) => {
  if (asleep(event) || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey || !wanted(event) || !button) return;
  event.preventDefault();
  if (dialog.open) dialog.close();
  else if (!document.querySelector("dialog[open]")) open();
});
button?.addEventListener("click", open);
if (/Mac|iP/.test(navigator.platform)) for (const one of document.querySelectorAll("[data-mod]")) one.textContent = one.textContent.replace("Ctrl+", "⌘");
