// Word diff of two texts. Runs in a page or in a Worker, so it uses no DOM.
//
// The cost of a word diff is the square of the number of changes. So long texts are first compared by lines, then by words
// within the changed lines.

const MAX_WORDS = 2000;
const TIME_LIMIT = 3000; // ms for a pair of texts; after that, the rest is compared only by lines

// Scripts without spaces between words: each character counts as a word.
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"];
const UNSPACED = SCRIPTS.map((name) => `\\p{Script=${name}}`).join("");
const WORDS = new RegExp(`[${UNSPACED}]|[^\\s${UNSPACED}]+`, "gu");
export const words = (text) => (text.match(WORDS) ?? []).length;

// The units of a diff: such a character, a word of other scripts, white space or punctuation. The library splits words only
// for Latin letters; it would compare Arabic or Russian by letters.
const PIECES = new RegExp(`\\r?\\n|[^\\S\\r\\n]+|[${UNSPACED}]\\p{M}*|(?:(?![${UNSPACED}])[\\p{L}\\p{M}\\p{N}_\\u00ad])+|[^]`, "gu");
const pieces = (text) => text.match(PIECES) ?? [];

let vendored;
const loadLibrary = async () => {
  await (vendored ??= import("../../vendor/diff@9.0.0/diff.min.js"));
  return globalThis.Diff;
};

// [{ text, side }] in order; side is "both", "there" (only in the first text) or "here" (only in the second).
export async function compute(there, here) {
  const diff = await loadLibrary();
  const deadline = performance.now() + TIME_LIMIT;
  if (words(there) <= MAX_WORDS && words(here) <= MAX_WORDS) {
    return compareWords(diff, there, here, deadline) ?? replaceAll(there, here);
  }
  const lines = diff.diffLines(there, here, { timeout: TIME_LIMIT });
  return lines ? compareLines(diff, lines, deadline) : replaceAll(there, here);
}

const replaceAll = (there, here) => [{ text: there, side: "there" }, { text: here, side: "here" }].filter((part) => part.text);

const toParts = (changes) =>
  changes.map(({ value, added, removed }) => ({
    text: typeof value === "string" ? value : value.join(""),
    side: added ? "here" : removed ? "there" : "both",
  }));

function compareWords(diff, there, here, deadline) {
  const timeout = Math.max(1, deadline - performance.now());
  const changes = diff.diffArrays(pieces(there), pieces(here), { timeout });
  return changes && toParts(changes);
}

// Removed lines and the lines that replace them are compared by words.
function compareLines(diff, lines, deadline) {
  const parts = [];
  for (let at = 0; at < lines.length; at += 1) {
    const [now, next] = [lines[at], lines[at + 1]];
    const pair = now.removed && next?.added && words(now.value) <= MAX_WORDS && words(next.value) <= MAX_WORDS;
    const changes = pair && performance.now() < deadline && compareWords(diff, now.value, next.value, deadline);
    if (changes) at += 1;
    parts.push(...(changes || toParts([now])));
  }
  return parts;
}
