// What somebody sees, passed on: Q copies it as a block for a chat, q opens the box that adds it to a finding.
const TEXT = "[data-text], pre";
const SAMPLE = "#sample, .board-column, .one-text";
let selected;

// A key or a button may take the selection away, so the last one made in a sample's text is remembered.
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
  const found = elementOf(range.startContainer)?.closest(TEXT);
  return found?.closest(SAMPLE) ? found : null;
};

// The passage as it is now: by the time the script is there, something else may be selected. It is of the sample that
// the button is of.
function passage(button) {
  const whole = selected?.startContainer.isConnected && textOf(selected);
  return { whole: whole && whole.closest(SAMPLE) === button.closest(SAMPLE) && whole, selected };
}

document.addEventListener("click", (event) => {
  const chat = event.target.closest("[data-chat]");
  const block = event.target.closest("[data-chat-block]");
  const add = event.target.closest("[data-finding-add]");
  if (!chat && !block && (!add || event.ctrlKey || event.metaKey)) return;
  if (!chat && !block) event.preventDefault();
  const now = passage(chat ?? add ?? block);
  import("./quote.js").then((quoting) => {
    if (chat) quoting.copied(chat, now);
    else if (block) quoting.shown(block);
    else quoting.added(add, now);
  });
});
