// What differs between two texts, word by word. Runs in a page or in a Worker; touches no document.
//
// Word diffs cost the square of what changed: a long pair is first matched line by line, and words only within the
// lines that changed.

const MOST_WORDS = 2000;
const PATIENCE = 3000; // ms for a pair of texts; after that what is left is shown as whole lines

// Scripts that are written without spaces: each character counts, as it does in the comparison.
const UNSPACED = "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}\\p{Script=Lao}\\p{Script=Khmer}\\p{Script=Myanmar}";
const WORDS = new RegExp(`[${UNSPACED}]|[^\\s${UNSPACED}]+`, "gu");
export const words = (text) => (text.match(WORDS) ?? []).length;

// What a diff may part: such a character, a word of the others, what lies between. The library's own words know Latin
// letters only, and would part Arabic or Russian letter by letter.
const PIECES = new RegExp(`\\r?\\n|[^\\S\\r\\n]+|[${UNSPACED}]\\p{M}*|(?:(?![${UNSPACED}])[\\p{L}\\p{M}\\p{N}_\\u00ad])+|[^]`, "gu");
const pieces = (text) => text.match(PIECES) ?? [];

let vendored;
const library = async () => {
  await (vendored ??= import("../../vendor/diff@9.0.0/diff.min.js"));
  return globalThis.Diff;
};

// [{ text, side }] in order; side is "both", "there" (only in the first text) or "here" (only in the second).
export async function compute(there, here) {
  const diff = await library();
  const deadline = performance.now() + PATIENCE;
  if (words(there) <= MOST_WORDS && words(here) <= MOST_WORDS) return byWords(diff, there, here, deadline) ?? whole(there, here);
  const lines = diff.diffLines(there, here, { timeout: PATIENCE });
  return lines ? refined(diff, lines, deadline) : whole(there, here);
}

const whole = (there, here) => [{ text: there, side: "there" }, { text: here, side: "here" }].filter((part) => part.text);

const told = (parts) => parts.map(({ value, added, removed }) => ({ text: typeof value === "string" ? value : value.join(""), side: added ? "here" : removed ? "there" : "both" }));

function byWords(diff, there, here, deadline) {
  const timeout = Math.max(1, deadline - performance.now());
  const found = diff.diffArrays(pieces(there), pieces(here), { timeout });
  return found && told(found);
}

// A stretch that was removed and one that stands in its place are compared word by word.
function refined(diff, lines, deadline) {
  const parts = [];
  for (let at = 0; at < lines.length; at += 1) {
    const [now, next] = [lines[at], lines[at + 1]];
    const pair = now.removed && next?.added && words(now.value) <= MOST_WORDS && words(next.value) <= MOST_WORDS && performance.now() < deadline;
    const found = pair && byWords(diff, now.value, next.value, deadline);
    if (found) at += 1;
    parts.push(...(found || told([now])));
  }
  return parts;
}
