// Saves flags and decisions in order. The page goes on while they are saved. If the server does not answer or the user is
// signed out, they are kept in this tab, also over a reload and on other pages, the page says so, and they are sent again until
// they are saved.
import { fill, gettext, ngettext } from "../common/i18n.js";
import { SIGNED_OUT, buildHeaders, isSignedOut } from "../common/post.js";
import { MESSAGE_OF_ERROR, showMessage } from "../common/ui.js";

const MIN_RETRY = 1000, MAX_RETRY = 30000, TIMEOUT = 30000, SLOW = 2000; // ms
const who = document.querySelector(".who")?.textContent.trim() ?? "";
const STORE = `unsaved ${who}`;
const NOT_DONE = new Set([429, 503]); // any other failure of the server may come after the change
const promises = new Map(); // item -> [resolve, reject] of its promise
let items = [], sending = false, state = "", signedOut = false;

// Sends the fields of a form. `item` has `sample` and `once`: an item that may not be sent twice, such as an undo. Returns a
// promise of the server's JSON; it fails with the server's message if the server refuses.
export function saveToOutbox(form, item, submitter = null, changes = {}) {
  const fields = new FormData(form, submitter);
  for (const name of ["csrfmiddlewaretoken", "page_user", "next"]) fields.delete(name);
  for (const [name, value] of Object.entries(changes)) fields.set(name, value);
  const entry = { ...item, url: form.action, fields: [...fields] };
  items.push(entry);
  store();
  const saved = new Promise((resolve, reject) => promises.set(entry, [resolve, reject]));
  sendAll();
  return saved;
}

export const listUnsaved = (sample) => (state === "failed" ? items.filter((item) => item.sample === sample) : []);

// What was not saved on the page before. An undo that may have been sent would undo something else.
function resume() {
  try {
    items = JSON.parse(sessionStorage.getItem(STORE) ?? "[]").filter((item) => !(item.once && item.isSent));
  } catch {
    items = [];
  }
  if (items.length) sendAll();
}

function store() {
  if (items.length) sessionStorage.setItem(STORE, JSON.stringify(items));
  else sessionStorage.removeItem(STORE);
}

async function sendAll() {
  if (sending) return;
  sending = true;
  for (let tries = 0; items.length; ) {
    const [item] = items;
    const result = await send(item);
    if (result) {
      tries = 0;
      items.shift();
      store();
      report(items.length ? state : "");
      const [resolve, reject] = promises.get(item) ?? [];
      promises.delete(item);
      if (!result.error) resolve?.(result.json);
      else if (reject) reject(result.error);
      else showMessage(describeError(item, result.error), MESSAGE_OF_ERROR);
      document.dispatchEvent(new CustomEvent("deck:saved", { detail: { item, error: result.error } }));
    } else await pause(Math.min(MAX_RETRY, MIN_RETRY * 2 ** tries++));
  }
  sending = false;
}

// For an item of the page before, whose sample may not be on the screen. The palette finds it by the start of its id.
function describeError({ sample }, { message }) {
  return sample ? fill(gettext("Sample {sample}: {message}"), { sample: sample.slice(0, 16), message }) : message;
}

// {json}, {error} if the server refuses, or nothing if it does not answer.
async function send(item) {
  item.isSent = true;
  store();
  const slow = setTimeout(() => report(state || "slow"), SLOW);
  const unclear = item.once ? { error: new Error(gettext("The undo may have been done. Look, then press u again.")) } : null;
  const headers = { Accept: "application/json", ...buildHeaders() };
  signedOut = false;
  try {
    const body = new URLSearchParams(item.fields);
    const signal = AbortSignal.timeout(TIMEOUT);
    const response = await fetch(item.url, { method: "POST", body, headers, signal, credentials: "same-origin" });
    if (NOT_DONE.has(response.status)) return keep(item);
    if (response.status >= 500) return unclear;
    const json = await response.json().catch(() => null);
    signedOut = isSignedOut(response, json);
    if (signedOut) return keep(item);
    if (response.ok && json) return { json };
    const status = fill(gettext("Not saved: the server returned status {status}."), { status: response.status });
    return { error: new Error(json?.message ?? status) };
  } catch {
    return unclear;
  } finally {
    clearTimeout(slow);
  }
}

// The server has certainly not done it: after a reload it is sent again.
function keep(item) {
  item.isSent = false;
  store();
  return null;
}

function pause(wait) {
  report("failed", wait);
  return new Promise((resolve) => {
    setTimeout(resolve, wait);
    document.addEventListener("deck:connected", resolve, { once: true });
    document.querySelector("#unsaved button")?.addEventListener("click", resolve, { once: true });
  });
}

// --- what the page says -----------------------------------------------------------------------------------------------

function report(now, wait = 0) {
  const changed = state !== now;
  state = now;
  let box = document.getElementById("unsaved");
  if (!state) box?.remove();
  else {
    if (!box) {
      box = Object.assign(document.createElement("div"), { id: "unsaved", className: "toast unsaved" });
      const words = document.createElement("span");
      words.setAttribute("role", "status");
      const button = { type: "button", className: "small", textContent: gettext("Try now") };
      box.append(words, Object.assign(document.createElement("button"), button));
      document.body.append(box);
    }
    const { length: count } = items;
    const saving = ngettext("saving {count} change …", "saving {count} changes …", count);
    const failed = ngettext(
      "{count} change is not saved, retrying in {seconds} s",
      "{count} changes are not saved, retrying in {seconds} s",
      count,
    );
    const text = fill(state === "slow" ? saving : failed, { count, seconds: Math.ceil(wait / 1000) });
    box.firstChild.textContent = signedOut ? `${SIGNED_OUT} ${text}` : text;
    box.lastChild.hidden = state === "slow";
  }
  if (changed) document.dispatchEvent(new CustomEvent("deck:unsaved"));
}

// The next page sends the rest, but a closed tab does not.
addEventListener("beforeunload", (event) => (state === "failed" || items.length > 1) && event.preventDefault());
resume();
