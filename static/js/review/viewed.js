// A sample that is open for one second counts as viewed. Viewed ids are sent in batches to save requests.
import { gettext } from "../common/i18n.js";
import { buildHeaders } from "../common/post.js";

const DWELL = 1000, BATCH_DELAY = 3000, BUSY_DELAY = 10000; // ms
const MAX_BATCH = 500; // the server's limit
const PASSING = new Set([403, 429]); // the session ended, or too many requests
const pane = document.getElementById("sample");
const viewed = new Map(); // id -> "viewed" or "ok"
const approved = new Set(); // ids that were marked OK on this page
const waiting = new Set();
let dwelling, sending, address;

const row = (id) => document.getElementById(`r-${id}`);

// A flag that says bad withdraws the OK. So for a flagged sample only the OK counts that the server has written into the row.
function markRow(id) {
  const element = row(id);
  if (!element || element.hasAttribute("data-ok")) return;
  if (element.querySelector(".tag.flag")) viewed.set(id, "viewed");
  const isOk = viewed.get(id) === "ok";
  element.dataset.viewed = isOk ? gettext("OK") : gettext("viewed");
  element.toggleAttribute("data-ok", isOk);
}

const markRows = () => viewed.forEach((_, id) => markRow(id));

function addViewed() {
  const article = pane.querySelector("article[data-seen]");
  const id = article?.dataset.id;
  if (!id || document.hidden || viewed.has(id)) return;
  viewed.set(id, "viewed");
  markRow(id);
  address = article.dataset.seen;
  waiting.add(id);
  sending ??= setTimeout(send, BATCH_DELAY);
}

// Also runs when the user leaves the page. Ids that the server did not accept are sent with the next batch. If there were too
// many requests, that is after the time that the answer names.
async function send() {
  clearTimeout(sending);
  sending = undefined;
  if (!waiting.size) return;
  const ids = [...waiting].slice(0, MAX_BATCH);
  for (const id of ids) waiting.delete(id);
  const headers = buildHeaders();
  const body = new URLSearchParams({ samples: ids.join() });
  const request = { method: "POST", body, headers, keepalive: true, credentials: "same-origin" };
  const response = await fetch(address, request).catch(() => null);
  const isLost = !response || response.redirected || response.status >= 500 || PASSING.has(response.status);
  if (isLost) for (const id of ids) waiting.add(id);
  if (response?.status === 429) sending ??= setTimeout(send, 1000 * response.headers.get("Retry-After") || BUSY_DELAY);
  else if (!isLost && waiting.size) sending ??= setTimeout(send, BATCH_DELAY);
}
document.addEventListener("deck:connected", send); // the server, or the session, is there again

function startTimer() {
  clearTimeout(dwelling);
  if (!document.hidden) dwelling = setTimeout(addViewed, DWELL);
}

document.addEventListener("deck:settled", (event) => (event.detail.panel === pane ? startTimer() : markRows()));
document.addEventListener("htmx:afterSettle", markRows);
document.addEventListener("visibilitychange", () => (startTimer(), document.hidden && send()));
addEventListener("pagehide", send);

// The user decided on a sample, or undid a decision.
document.addEventListener("deck:decided", (event) => {
  const { ok, undone } = event.detail;
  if (ok) viewed.set(ok, "ok"), approved.add(ok), markRow(ok);
  if (!approved.delete(undone)) return;
  viewed.delete(undone);
  row(undone)?.removeAttribute("data-ok");
  row(undone)?.removeAttribute("data-viewed");
});
startTimer();
