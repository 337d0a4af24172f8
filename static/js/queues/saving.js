// Answers on their way to the server. They are sent again until it takes or refuses them.
import { fill, ngettext } from "../common/i18n.js";
import { postData } from "../common/post.js";
import { writeMessage } from "../common/ui.js";

const RETRY_DELAYS = [1000, 2000, 5000, 10000], TIMEOUT = 30000, MAX_FACTOR = 4; // ms
const PASSING = new Set([401, 403, 408, 425, 429]); // signed out for a moment, or too many requests: the answers stay here
const pending = new Map(); // item -> { url, data, before, saved }; the last two are promises
let last = null; // the promise of the answers before
const failing = new Set(); // items whose answers were sent at least once in vain

const isRefusal = ({ status }) => status && status < 500 && !PASSING.has(status);

// Returns { result } when the answers are saved, or { error } with which the server refuses them. Answers that replace them in
// the meantime are sent too.
async function sendUntilAnswered(item, answers) {
  for (let failures = 0; ; failures++) {
    const { url, data, before } = answers;
    await before;
    const sent = postData(url, data, AbortSignal.timeout(TIMEOUT * Math.min(failures + 1, MAX_FACTOR))); // a slow line needs more
    const outcome = await sent.then((result) => ({ result }), (error) => ({ error }));
    if (!outcome.error || isRefusal(outcome.error)) {
      if (answers.data === data) return outcome;
      continue;
    }
    failing.add(item);
    drawBanner(outcome.error);
    await new Promise((resolve) => setTimeout(resolve, RETRY_DELAYS[Math.min(failures, RETRY_DELAYS.length - 1)]));
  }
}

// One after the other: each result has the progress, and the last one is shown. `before` is what must be sent first.
export function saveAnswers(item, url, data, before) {
  const answers = { url, data, before };
  pending.set(item, answers);
  answers.saved = Promise.resolve(last)
    .then(() => sendUntilAnswered(item, answers))
    .finally(() => {
      pending.delete(item);
      failing.delete(item);
      drawBanner();
    });
  last = answers.saved;
  if (failing.size) drawBanner();
  return last;
}

export const isSaving = (item) => pending.has(item);
export const replaceAnswers = (item, data, before) => Object.assign(pending.get(item), { data, before });
export const listSaving = () => [...pending.keys()];
export const waitForSaving = () => Promise.allSettled([...pending.values()].map(({ saved }) => saved));

function drawBanner(error = null) {
  const banner = document.getElementById("unsaved-answers");
  banner.hidden = !failing.size;
  const text = ngettext(
    "{count} answered item is not saved yet. Trying again; keep this page open.",
    "{count} answered items are not saved yet. Trying again; keep this page open.",
    pending.size,
  );
  writeMessage(banner, [fill(text, { count: pending.size }), error?.status ? error.message : ""].join(" ").trim());
}

window.addEventListener("beforeunload", (event) => {
  if (pending.size) event.preventDefault();
});
