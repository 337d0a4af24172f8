// A sample that was open for a second has been looked at. Told in batches, so that reading costs no request each.
import { gettext } from "../common/i18n.js";

const DWELL = 1000, GATHER = 3000; // ms
const MOST = 500; // the server takes at once
const pane = document.getElementById("sample");
const looked = new Map(); // id -> "seen" or "fine"
const waiting = new Set();
let dwelling, sending, address;

const row = (id) => document.getElementById(`r-${id}`);

function mark(id) {
  const found = row(id);
  if (!found || found.hasAttribute("data-fine")) return;
  const fine = looked.get(id) === "fine";
  found.dataset.look = fine ? gettext("fine") : gettext("seen");
  found.toggleAttribute("data-fine", fine);
}

function look() {
  const article = pane.querySelector("article[data-seen]");
  const id = article?.dataset.id;
  if (!id || document.hidden || looked.has(id)) return;
  looked.set(id, "seen");
  mark(id);
  address = article.dataset.seen;
  waiting.add(id);
  sending ??= setTimeout(send, GATHER);
}

// Also while the page is being left. What did not arrive goes with the next batch.
async function send() {
  clearTimeout(sending);
  sending = undefined;
  if (!waiting.size) return;
  const ids = [...waiting].slice(0, MOST);
  for (const id of ids) waiting.delete(id);
  const headers = JSON.parse(document.body.getAttribute("hx-headers"));
  const body = new URLSearchParams({ samples: ids.join() });
  try {
    const answer = await fetch(address, { method: "POST", body, headers, keepalive: true, credentials: "same-origin" });
    if (answer.status >= 500) throw new Error(answer.statusText);
    if (waiting.size) sending ??= setTimeout(send, GATHER);
  } catch {
    for (const id of ids) waiting.add(id);
  }
}

function dwell() {
  clearTimeout(dwelling);
  if (!document.hidden) dwelling = setTimeout(look, DWELL);
}

document.addEventListener("deck:settled", (event) => (event.detail.panel === pane ? dwell() : looked.forEach((_, id) => mark(id))));
document.addEventListener("htmx:afterSettle", () => looked.forEach((_, id) => mark(id)));
document.addEventListener("visibilitychange", () => (dwell(), document.hidden && send()));
addEventListener("pagehide", send);

// One's own word on a sample, or that word undone.
document.addEventListener("deck:said", (event) => {
  const { fine, undone } = event.detail;
  if (fine) looked.set(fine, "fine"), mark(fine);
  if (!undone || looked.get(undone) !== "fine") return;
  looked.delete(undone);
  row(undone)?.removeAttribute("data-fine");
  row(undone)?.removeAttribute("data-look");
});
dwell();
