// Answers on their way to the server. They are sent again until it takes or refuses them.
import { fill, gettext } from "../common/i18n.js";
import { postData } from "../common/post.js";
import { writeMessage } from "../common/ui.js";

const RETRY_DELAYS = [1000, 2000, 5000, 10000]; // ms
const PASSING = new Set([401, 403, 408, 425, 429]); // signed out for a moment, or too many requests: the answers stay here
const pending = new Map(); // item -> promise
let last = null; // the promise of the answers before
const failing = new Set(); // items whose answers were sent at least once in vain

// Returns { result } when the answers are saved, or { error } with which the server refuses them.
async function sendUntilAnswered(item, url, data) {
  for (let failures = 0; ; failures++) {
    try {
      return { result: await postData(url, data) };
    } catch (error) {
      if (error.status && error.status < 500 && !PASSING.has(error.status)) return { error };
      failing.add(item);
      drawBanner(error);
      await new Promise((resolve) => setTimeout(resolve, RETRY_DELAYS[Math.min(failures, RETRY_DELAYS.length - 1)]));
    }
  }
}

// One after the other: each result has the progress, and the last one is shown.
export function saveAnswers(item, url, data, before) {
  const saving = Promise.all([before, last])
    .then(() => sendUntilAnswered(item, url, data))
    .finally(() => {
      pending.delete(item);
      failing.delete(item);
      drawBanner();
    });
  pending.set(item, saving);
  last = saving;
  if (failing.size) drawBanner();
  return saving;
}

export const isSaving = (item) => pending.has(item);
export const waitForSaving = () => Promise.allSettled(pending.values());

function drawBanner(error = null) {
  const banner = document.getElementById("unsaved-answers");
  banner.hidden = !failing.size;
  const text = gettext("{count} answered items are not saved yet. Trying again; keep this page open.");
  writeMessage(banner, [fill(text, { count: pending.size }), error?.status ? error.message : ""].join(" ").trim());
}

window.addEventListener("beforeunload", (event) => {
  if (pending.size) event.preventDefault();
});
