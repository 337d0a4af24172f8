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

// The buttons that move or remove an item of a finding load the page again. The focus stays at the item.
const MOVED = "moved evidence";

document.addEventListener("submit", ({ target, submitter }) => {
  const item = target.closest(".exhibit");
  if (!item || submitter?.name !== "do") return;
  const { id } = submitter.value === "out" ? item.nextElementSibling ?? item.previousElementSibling ?? item : item;
  try {
    sessionStorage.setItem(MOVED, JSON.stringify({ id, value: submitter.value }));
  } catch {} // without a storage the focus is lost
});

function focusMoved() {
  const { id, value } = JSON.parse(sessionStorage.getItem(MOVED) ?? "{}");
  sessionStorage.removeItem(MOVED);
  const buttons = id ? [...document.querySelectorAll(`#${CSS.escape(id)} button[name=do]:not(:disabled)`)] : [];
  (buttons.find((button) => button.value === value) ?? buttons[0])?.focus();
}

try {
  focusMoved();
} catch {} // without a storage

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
