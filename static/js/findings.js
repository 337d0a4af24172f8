// What somebody sees, passed on: Q copies it as a block for a chat, q opens the box that adds it to a finding.
import { copy, say } from "./frame.js";

let quoted = { text: "", near: 0 };

// A button or a key must not lose the selection, so the last one made in a sample's text is remembered.
document.addEventListener("selectionchange", () => {
  const selection = getSelection();
  const text = selection.toString();
  const inside = selection.rangeCount && selection.getRangeAt(0).commonAncestorContainer;
  const whole = (inside?.nodeType === Node.TEXT_NODE ? inside.parentElement : inside)?.closest?.("#sample");
  if (document.activeElement?.closest?.("dialog")) return;
  quoted = whole && text.trim() ? { text, near: before(whole, selection.getRangeAt(0)) } : { text: "", near: 0 };
});

// About where in its text the selection begins, in characters: tells equal passages apart.
function before(whole, range) {
  const start = range.startContainer.parentElement?.closest("pre") ?? whole;
  const until = document.createRange();
  until.setStart(start, 0);
  until.setEnd(range.startContainer, range.startOffset);
  return until.toString().length;
}

document.addEventListener("mousedown", (event) => {
  if (event.target.closest?.("[data-chat], [data-finding-add]")) event.preventDefault();
});

function block({ chat, tail, link }) {
  const said = (quoted.text || tail).trim().split("\n").map((line) => `> ${line}`);
  return [chat, ...(said.join("").length > 2 ? said : []), new URL(link, location.href).href].join("\n");
}

document.addEventListener("click", async (event) => {
  const sample = event.target.closest("[data-chat]");
  const shown = event.target.closest("[data-chat-block]");
  if (sample) await copy(block(sample.dataset));
  if (shown) await copy(shown.nextElementSibling.textContent);
  if (sample || shown) return say(quoted.text && sample ? "Copied with the quote" : "Copied");
  const add = event.target.closest("[data-finding-add]");
  if (!add || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  (await import("./adding.js")).open(add.href, { ...quoted });
});
