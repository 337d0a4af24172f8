// Quotes: copied as text for a chat, or added to a finding.
import { copyText } from "../common/ui.js";
import { gettext } from "../common/i18n.js";

const NONE = { text: "", near: 0 };
const TAIL = 200; // characters

// The text of a range as the model wrote it: with collapsed parts, without their summary lines.
function originalText(range) {
  const part = range.cloneContents();
  for (const summary of part.querySelectorAll("summary")) summary.remove();
  return part.textContent;
}

// The quoted text and its approximate position in characters, which distinguishes equal passages.
export function buildQuote({ text: container, selected }) {
  if (!container) return NONE;
  const until = document.createRange();
  until.setStart(container, 0);
  until.setEnd(selected.startContainer, selected.startOffset);
  const text = originalText(selected);
  return text.trim() ? { text, near: [...originalText(until)].length } : NONE;
}

// The end of the sample's text, if the button has no `data-tail`.
const end = (button) => button.closest("article")?.querySelector("pre")?.textContent.slice(-TAIL) ?? "";

function buildBlock({ chat, to }, text) {
  const lines = text.trim();
  const quote = lines ? lines.split("\n").map((line) => `> ${line}`) : [];
  return [chat, ...quote, new URL(to, location.href).href].join("\n");
}

export async function copyQuote(button, passage) {
  const quote = buildQuote(passage);
  const block = buildBlock(button.dataset, quote.text || (button.dataset.tail ?? end(button)));
  await copyText(block, quote.text ? gettext("Copied with quote") : undefined);
}

export async function copyBlock(button) {
  await copyText(button.nextElementSibling.textContent);
}

export async function addQuote(link, passage) {
  await (await import("./add_form.js")).openAddForm(link.href, buildQuote(passage));
}
