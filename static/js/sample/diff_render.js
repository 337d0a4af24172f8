// A word diff of two texts, and how it is drawn. Model text only ever becomes text nodes.
import { compute, words } from "./word_diff.js";
import { fill, gettext } from "../common/i18n.js";

const ACTING = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u200b\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;
const SEEN_AROUND = 3; // lines of what both say that stay in sight beside a change
const LEAST_FOLDED = 12;
const AT_ONCE = 800; // words; longer texts are compared in a Worker

let worker;

// [{ text, side: "both" | "there" | "here" }]; rejects when the browser cannot compare them.
export function differences(there, here) {
  worker?.terminate();
  worker = null;
  if (words(there) <= AT_ONCE && words(here) <= AT_ONCE) return compute(there, here);
  return new Promise((done, failed) => {
    worker = new Worker(new URL("./word_diff_worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => done(data);
    worker.onerror = (event) => failed(new Error(event.message));
    worker.postMessage({ there, here });
  });
}

// A text as the server shows it: what would hide or turn its surroundings is named (see `plain` in text.py).
export function named(text) {
  const made = document.createDocumentFragment();
  let at = 0;
  for (const found of text.matchAll(ACTING)) {
    const sign = Object.assign(document.createElement("i"), { className: "acting", textContent: found[0] < " " ? "" : found[0] });
    sign.dataset.code = `U+${found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    made.append(text.slice(at, found.index), sign);
    at = found.index + 1;
  }
  made.append(text.slice(at));
  return made;
}

const TAGS = { there: "del", here: "ins" };

// Fills `element` with the parts: <del> for what only the first text has, <ins> for what only the second has.
export function draw(element, parts) {
  element.replaceChildren(...parts.flatMap((part, at) => (part.side === "both" ? same(part.text, at > 0, at < parts.length - 1) : [changed(part)])));
}

function changed({ text, side }) {
  const made = document.createElement(TAGS[side]);
  made.append(named(text));
  return made;
}

// What both say, its middle folded where it is long.
function same(text, before, after) {
  const lines = text.split(/(?<=\n)/);
  const first = before ? SEEN_AROUND : 0;
  const last = after ? SEEN_AROUND : 0;
  const hidden = lines.slice(first, lines.length - last);
  if (hidden.length < LEAST_FOLDED) return [named(text)];
  const fold = Object.assign(document.createElement("details"), { className: "fold" });
  fold.append(Object.assign(document.createElement("summary"), { textContent: fill(gettext("{count} lines the same"), { count: hidden.length.toLocaleString("en") }) }), named(hidden.join("")));
  return [named(lines.slice(0, first).join("")), fold, named(lines.slice(lines.length - last).join(""))];
}
