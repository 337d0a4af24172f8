// Word diff of two texts. Runs in a page or in a Worker, so it uses no DOM.
//
// The cost of a word diff is the square of the number of changes. So long texts are first compared by lines, then by words
// within the changed lines.

const MAX_WORDS = 2000; // of texts or changed lines that are compared by words
const MAX_COMPARED_CHARS = 400_000; // of each text
const SEQUENCE = 3; // words
const MIN_COUNTED_WORDS = 12; // likeness is not measured for shorter texts
const MIN_LIKENESS = 0.2; // a word diff of less similar texts consists of words that are the same by chance
const HIGH_LIKENESS = 0.8; // a word diff of such texts is fast even if they are long
const TIME_LIMIT = 3000; // ms for a pair of texts; after that, the rest is compared only by lines

// Scripts without spaces between words: each character counts as a word.
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"];
const UNSPACED = SCRIPTS.map((name) => `\\p{Script=${name}}`).join("");
const WORDS = new RegExp(`[${UNSPACED}]|[^\\s${UNSPACED}]+`, "gu");
export const countWords = (text) => (text.match(WORDS) ?? []).length;

// The units of a diff: such a character, a word of other scripts, white space or punctuation. The library splits words only
// for Latin letters; it would compare Arabic or Russian by letters.
const PIECES = new RegExp(`\\r?\\n|[^\\S\\r\\n]+|[${UNSPACED}]\\p{M}*|(?:(?![${UNSPACED}])[\\p{L}\\p{M}\\p{N}_\\u00ad])+|[^]`, "gu");
const pieces = (text) => text.match(PIECES) ?? [];

let vendored;
const loadLibrary = async () => {
  await (vendored ??= import("../../vendor/diff@9.0.0/diff.min.js"));
  return globalThis.Diff;
};

// How much of two texts is the same, 0 to 1: the share of sequences of three words that both have. Null for a short text.
export function measureLikeness(there, here) {
  const [first, second] = [there, here].map((text) => text.match(WORDS) ?? []);
  if (Math.min(first.length, second.length) < MIN_COUNTED_WORDS) return null;
  const counts = new Map();
  for (const sequence of listSequences(first)) counts.set(sequence, (counts.get(sequence) ?? 0) + 1);
  let same = 0;
  for (const sequence of listSequences(second)) {
    const left = counts.get(sequence);
    if (!left) continue;
    counts.set(sequence, left - 1);
    same += 1;
  }
  return (2 * same) / (first.length + second.length - 2 * (SEQUENCE - 1));
}

function* listSequences(list) {
  for (let at = 0; at + SEQUENCE <= list.length; at += 1) yield list.slice(at, at + SEQUENCE).join(" ");
}

// { likeness, parts }. `parts` is [{ text, side }] in order; side is "both", "there" (only in the first text), "here" (only in
// the second) or "rest" (what follows in the second, not compared). It is null for unlike texts, except with `always`.
export async function computeWordDiff(there, here, always = false) {
  const [first, second] = [there, here].map((text) => text.slice(0, MAX_COMPARED_CHARS));
  const likeness = measureLikeness(first, second);
  if (!always && likeness !== null && likeness < MIN_LIKENESS) return { likeness, parts: null };
  const rest = here.slice(MAX_COMPARED_CHARS);
  const parts = await compareTexts(first, second, likeness > HIGH_LIKENESS ? Infinity : MAX_WORDS);
  if (!always && !sharesText(parts, first, second)) return { likeness: null, parts: null };
  return { likeness, parts: rest ? [...parts, { text: rest, side: "rest" }] : parts };
}

// False if hardly anything of two texts is the same, of which one is long: one is short, or the time was over.
function sharesText(parts, first, second) {
  const shared = parts.reduce((sum, { text, side }) => sum + (side === "both" ? text.length : 0), 0);
  const isLong = Math.max(countWords(first), countWords(second)) >= MIN_COUNTED_WORDS;
  return !isLong || 2 * shared >= MIN_LIKENESS * (first.length + second.length);
}

async function compareTexts(there, here, maxWords) {
  const diff = await loadLibrary();
  const deadline = performance.now() + TIME_LIMIT;
  if (countWords(there) <= MAX_WORDS && countWords(here) <= MAX_WORDS) {
    return compareWords(diff, there, here, deadline) ?? replaceAll(there, here);
  }
  const lines = diff.diffLines(there, here, { timeout: TIME_LIMIT });
  return lines ? compareLines(diff, lines, deadline, maxWords) : replaceAll(there, here);
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
function compareLines(diff, lines, deadline, maxWords) {
  const parts = [];
  for (let at = 0; at < lines.length; at += 1) {
    const [now, next] = [lines[at], lines[at + 1]];
    const pair = now.removed && next?.added && countWords(now.value) <= maxWords && countWords(next.value) <= maxWords;
    const changes = pair && performance.now() < deadline && compareWords(diff, now.value, next.value, deadline);
    if (changes) at += 1;
    parts.push(...(changes || toParts([now])));
  }
  return parts;
}
