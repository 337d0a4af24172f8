// What somebody sees, passed on: Q copies it as a block for a chat, q opens the box that adds it to a finding.
import { copy, say } from "./frame.js";
import { gettext } from "./i18n.js";

const TEXT = "[data-text], pre";
const NONE = { text: "", near: 0 };
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
  return found?.closest("#sample") ? found : null;
};

// As it was written: what is folded away belongs to it, the line that says so does not.
function written(range) {
  const part = range.cloneContents();
  for (const said of part.querySelectorAll("summary")) said.remove();
  return part.textContent;
}

// What is quoted, and about where its text begins, in characters: that tells equal passages apart.
function quoted() {
  const whole = selected?.startContainer.isConnected && textOf(selected);
  if (!whole) return NONE;
  const until = document.createRange();
  until.setStart(whole, 0);
  until.setEnd(selected.startContainer, selected.startOffset);
  const text = written(selected);
  return text.trim() ? { text, near: written(until).length } : NONE;
}

function block({ chat, tail, to }, said) {
  const lines = (said || tail).trim();
  const quote = lines ? lines.split("\n").map((line) => `> ${line}`) : [];
  return [chat, ...quote, new URL(to, location.href).href].join("\n");
}

document.addEventListener("click", async (event) => {
  const sample = event.target.closest("[data-chat]");
  const shown = event.target.closest("[data-chat-block]");
  const add = event.target.closest("[data-finding-add]");
  if (!sample && !shown && !add) return;
  const quote = quoted();
  if (shown) await copy(shown.nextElementSibling.textContent);
  if (sample) await copy(block(sample.dataset, quote.text));
  if (sample || shown) return say(sample && quote.text ? gettext("Copied with the quote") : gettext("Copied"));
  if (event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  (await import("./adding.js")).open(add.href, quote);
});
