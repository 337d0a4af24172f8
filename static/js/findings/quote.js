// A quote as text, as a block for a chat, or in the box that adds it to a finding.
import { copy, say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";

const NONE = { text: "", near: 0 };
const TAIL = 200; // characters

// As it was written: what is folded away belongs to it, the line that says so does not.
function written(range) {
  const part = range.cloneContents();
  for (const said of part.querySelectorAll("summary")) said.remove();
  return part.textContent;
}

// What is quoted, and about where its text begins, in characters: that tells equal passages apart.
function quoted({ whole, selected }) {
  if (!whole) return NONE;
  const until = document.createRange();
  until.setStart(whole, 0);
  until.setEnd(selected.startContainer, selected.startOffset);
  const text = written(selected);
  return text.trim() ? { text, near: written(until).length } : NONE;
}

// The end of the text that a button stands over, where the button does not say it.
const end = (button) => button.closest("article")?.querySelector("pre")?.textContent.slice(-TAIL) ?? "";

function block({ chat, to }, text) {
  const lines = text.trim();
  const quote = lines ? lines.split("\n").map((line) => `> ${line}`) : [];
  return [chat, ...quote, new URL(to, location.href).href].join("\n");
}

export async function copied(button, passage) {
  const quote = quoted(passage);
  await copy(block(button.dataset, quote.text || (button.dataset.tail ?? end(button))));
  say(quote.text ? gettext("Copied with the quote") : gettext("Copied"));
}

export async function shown(button) {
  await copy(button.nextElementSibling.textContent);
  say(gettext("Copied"));
}

export async function added(link, passage) {
  (await import("./add_form.js")).open(link.href, quoted(passage));
}
