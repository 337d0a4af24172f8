// Sharing the current view: Q copies it as text for a chat, q opens the dialog that adds it to a finding.
import { holdKeys } from "../common/key_queue.js";

const TEXT = "[data-text], pre";
const SAMPLE = "#sample, .board-column, .one-text";
let selected;

// A key or a click may clear the selection, so the last selection in a sample's text is stored.
document.addEventListener("selectionchange", () => {
  if (document.activeElement?.closest?.("dialog")) return;
  const selection = getSelection();
  const range = selection.rangeCount && !selection.isCollapsed && selection.getRangeAt(0);
  selected = range && textOf(range) ? range.cloneRange() : undefined;
});

document.addEventListener("mousedown", (event) => {
  if (event.target.closest?.("[data-chat], [data-finding-add]")) event.preventDefault();
});

const elementOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement);
const textOf = (range) => {
  const text = elementOf(range.startContainer)?.closest(TEXT);
  return text?.closest(SAMPLE) ? text : null;
};

// The selection now: another one may be made before quote.js is loaded. It counts only in the sample of the button.
function readSelection(button) {
  const text = selected?.startContainer.isConnected && textOf(selected);
  return { text: text && text.closest(SAMPLE) === button.closest(SAMPLE) && text, selected };
}

document.addEventListener("click", (event) => {
  const chat = event.target.closest("[data-chat]");
  const block = event.target.closest("[data-chat-block]");
  const add = event.target.closest("[data-finding-add]");
  if (!chat && !block && (!add || event.ctrlKey || event.metaKey)) return;
  if (!chat && !block) event.preventDefault();
  const now = readSelection(chat ?? add ?? block);
  const loaded = import("./quote.js");
  if (chat) loaded.then((quoting) => quoting.copyQuote(chat, now));
  else if (block) loaded.then((quoting) => quoting.copyBlock(block));
  else holdKeys(loaded.then((quoting) => quoting.addQuote(add, now))); // the next keys are for the dialog
});
