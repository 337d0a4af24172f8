// Computes and renders a word diff of two texts. Model text becomes only text nodes, never HTML.
import { compute, words } from "./word_diff.js";
import { fill, gettext } from "../common/i18n.js";

const INVISIBLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u200b\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;
const CONTEXT = 3; // unchanged lines that remain visible next to a change
const MIN_COLLAPSED = 12; // lines
const MAX_INLINE = 800; // words; longer texts are compared in a Worker

let worker;

// [{ text, side: "both" | "there" | "here" }]; rejects if the browser cannot compare the texts.
export function differences(there, here) {
  worker?.terminate();
  worker = null;
  if (words(there) <= MAX_INLINE && words(here) <= MAX_INLINE) return compute(there, here);
  return new Promise((done, failed) => {
    worker = new Worker(new URL("./word_diff_worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => done(data);
    worker.onerror = (event) => failed(new Error(event.message));
    worker.postMessage({ there, here });
  });
}

// Text as the server renders it: invisible and direction-changing characters show their code (see `plain` in text.py).
export function showInvisible(text) {
  const fragment = document.createDocumentFragment();
  let at = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    const [char] = match;
    const sign = Object.assign(document.createElement("i"), { className: "acting", textContent: char < " " ? "" : char });
    sign.dataset.code = `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    fragment.append(text.slice(at, match.index), sign);
    at = match.index + 1;
  }
  fragment.append(text.slice(at));
  return fragment;
}

const TAGS = { there: "del", here: "ins" };

// Fills `element` with the parts: <del> for text that only the first has, <ins> for text that only the second has.
export function renderDiff(element, parts) {
  const last = parts.length - 1;
  const renderPart = (part, at) => (part.side === "both" ? renderSame(part.text, at > 0, at < last) : [renderChange(part)]);
  element.replaceChildren(...parts.flatMap(renderPart));
}

function renderChange({ text, side }) {
  const fragment = document.createElement(TAGS[side]);
  fragment.append(showInvisible(text));
  return fragment;
}

// Text that both have. The middle of a long part is collapsed.
function renderSame(text, before, after) {
  const lines = text.split(/(?<=\n)/);
  const first = before ? CONTEXT : 0;
  const last = after ? CONTEXT : 0;
  const hidden = lines.slice(first, lines.length - last);
  if (hidden.length < MIN_COLLAPSED) return [showInvisible(text)];
  const fold = Object.assign(document.createElement("details"), { className: "fold" });
  const heading = fill(gettext("{count} identical lines"), { count: hidden.length.toLocaleString("en") });
  fold.append(Object.assign(document.createElement("summary"), { textContent: heading }), showInvisible(hidden.join("")));
  return [showInvisible(lines.slice(0, first).join("")), fold, showInvisible(lines.slice(lines.length - last).join(""))];
}
