// Ctrl+K or ⌘K opens the command palette, whose script is loaded then.
import { holdKeys } from "../common/key_queue.js";
import { isIgnored } from "../common/keyboard_layout.js";
import { reportMissingPart } from "../common/ui.js";

const dialog = document.getElementById("palette");
const button = document.querySelector("[data-palette]");

function open() {
  document.getElementById("palette-box").value = "";
  dialog.showModal();
  const begun = import("./palette.js").then((palette) => palette.installPalette());
  holdKeys(begun, ({ key }) => key.length === 1 || key === "Escape");
  begun.catch(() => (dialog.close(), reportMissingPart()));
}

const isK = ({ key, code }) => key.toLowerCase() === "k" || (code === "KeyK" && key.codePointAt(0) > 0x24f);

document.addEventListener("keydown", (event) => {
  if (isIgnored(event) || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey || !isK(event) || !button) return;
  event.preventDefault();
  if (dialog.open) dialog.close();
  else if (!document.querySelector("dialog[open]")) open();
});
button?.addEventListener("click", open);
if (/Mac|iP/.test(navigator.platform)) {
  for (const key of document.querySelectorAll("[data-mod]")) key.textContent = key.textContent.replace("Ctrl+", "⌘");
}
