// Computes and renders a word diff of two texts. Model text becomes only text nodes, never HTML.
import { computeWordDiff, countWords } from "./word_diff.js";
import { fill, gettext } from "../common/i18n.js";
import { INVISIBLE, formatCode } from "../common/invisible.js";

const CONTEXT = 3; // unchanged lines that remain visible next to a change
const MIN_COLLAPSED = 12; // lines
const MAX_INLINE = 800; // words; longer texts are compared in a Worker
const MAX_INLINE_CHARS = 20_000;
const BLOCK_CHARS = 20_000;
const MAX_UNSPLIT_CHARS = 40_000;

// What `compute` returns; rejects if the browser cannot compare the texts, or on the abort of `signal`.
export function renderDifferences(there, here, always = false, signal = null) {
  if (isShort(there) && isShort(here)) return computeWordDiff(there, here, always);
  const worker = new Worker(new URL("./word_diff_worker.js", import.meta.url), { type: "module" });
  const answer = new Promise((done, failed) => {
    worker.onmessage = ({ data }) => ("error" in data ? failed(new Error(data.error)) : done(data));
    worker.onerror = (event) => failed(new Error(event.message));
    signal?.addEventListener("abort", () => failed(signal.reason));
    worker.postMessage({ there, here, always });
  });
  return answer.finally(() => worker.terminate());
}

const isShort = (text) => text.length <= MAX_INLINE_CHARS && countWords(text) <= MAX_INLINE;

// Why the texts are side by side instead of a word diff.
export function describeUnlike(likeness) {
  if (likeness === null) return gettext("The texts are too different for a word diff.");
  const percent = Math.round(100 * likeness);
  const text = gettext("The texts are too different for a word diff: {percent} % of their three-word sequences are the same (limit 20 %).");
  return fill(text, { percent });
}

// Text as the server renders it: invisible and direction-changing characters show their code (see `mark_control_characters`
// in dashboard/pages/common/formatting.py).
export function showInvisible(text) {
  const fragment = document.createDocumentFragment();
  if (text.length > MAX_UNSPLIT_CHARS) {
    for (const block of splitIntoBlocks(text)) {
      const span = Object.assign(document.createElement("span"), { className: "block" });
      span.append(showInvisible(block));
      fragment.append(span);
    }
    return fragment;
  }
  let at = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    const [char] = match;
    const sign = Object.assign(document.createElement("i"), { className: "acting", textContent: char < " " ? "" : char });
    sign.dataset.code = formatCode(char);
    fragment.append(text.slice(at, match.index), sign);
    at = match.index + 1;
  }
  fragment.append(text.slice(at));
  return fragment;
}

// As `split_into_blocks` in formatting.py: browsers need seconds for the layout of one long line in several scripts.
function* splitIntoBlocks(text) {
  let at = 0;
  while (at < text.length) {
    const near = text.slice(at + BLOCK_CHARS, at + 2 * BLOCK_CHARS);
    const found = ["\n", " "].map((end) => near.indexOf(end) + 1).find(Boolean);
    let end = Math.min(text.length, at + BLOCK_CHARS + (found ?? 0));
    while (end < text.length && /^[\p{M}\u200d\udc00-\udfff]/u.test(text.slice(end, end + 1))) end += 1;
    yield text.slice(at, end);
    at = end;
  }
}

const TAGS = { there: "del", here: "ins" };

// Fills `element` with the parts: <del> for text that only the first has, <ins> for text that only the second has.
export function renderDiff(element, parts) {
  const last = parts.length - 1;
  const renderPart = (part, at) => {
    if (part.side === "rest") return [renderRest(part.text)];
    return part.side === "both" ? renderSame(part.text, at > 0, at < last) : [renderChange(part)];
  };
  element.replaceChildren(...parts.flatMap(renderPart));
}

function renderChange({ text, side }) {
  const fragment = document.createElement(TAGS[side]);
  fragment.append(showInvisible(text));
  return fragment;
}

function renderRest(text) {
  const heading = fill(gettext("{count} more characters, not compared"), { count: text.length.toLocaleString("en") });
  return createFold(heading, showInvisible(text));
}

function createFold(heading, content) {
  const fold = Object.assign(document.createElement("details"), { className: "fold" });
  fold.append(Object.assign(document.createElement("summary"), { textContent: heading }), content);
  return fold;
}

// Text that both have. The middle of a long part is collapsed.
function renderSame(text, before, after) {
  const lines = text.split(/(?<=\n)/);
  const first = before ? CONTEXT : 0;
  const last = after ? CONTEXT : 0;
  const hidden = lines.slice(first, lines.length - last);
  if (hidden.length < MIN_COLLAPSED) return [showInvisible(text)];
  const heading = fill(gettext("{count} identical lines"), { count: hidden.length.toLocaleString("en") });
  const fold = createFold(heading, showInvisible(hidden.join("")));
  return [showInvisible(lines.slice(0, first).join("")), fold, showInvisible(lines.slice(lines.length - last).join(""))];
}
