// Requests the content of panels and swaps it in. The URL is that of the page; HX-Target or X-Panels names the panels.
import { fill, gettext } from "./i18n.js";
import { SIGNED_OUT } from "./post.js";

const etags = new Map(); // "id url", or "id id url" for panels that were requested together
const groups = new Map(); // url -> [{ panel, signal, resolve, reject }]
let busy = 0;

// The step that a page of the latest step shows. Its panels stay at this step until the user asks for a newer one.
export function buildPanelHeaders(panel) {
  const shown = document.querySelector("[data-word=latest]")?.dataset.step;
  return { "HX-Request": "true", "HX-Target": panel.id, ...(shown ? { "X-Shown-Step": shown } : {}) };
}
document.addEventListener("htmx:configRequest", ({ detail }) => {
  const shown = buildPanelHeaders(detail.target)["X-Shown-Step"];
  if (shown) detail.headers["X-Shown-Step"] = shown;
});

export const announceSettled = (panel) => document.dispatchEvent(new CustomEvent("deck:settled", { detail: { panel } }));

const MESSAGES = {
  401: SIGNED_OUT, 429: gettext("Your other searches still run. Wait a few seconds, then try again."),
};

// The server answered, but not with the panel. `html` is its message about a query with an error.
export class PanelError extends Error {
  constructor(status, html = "") {
    super(MESSAGES[status] ?? fill(gettext("The server returned status {status}."), { status }));
    Object.assign(this, { status, html });
  }
}

// Throws what the server said if the answer is not what was requested.
export function checkAnswer(response) {
  if (response.redirected) throw new PanelError(401);
  if (!response.ok) throw new PanelError(response.status);
}

// The next request gets the panel's HTML even if it is the same: what arrived last is not on the page.
export function forgetPanel(panel) {
  for (const key of etags.keys()) if (key.split(" ").slice(0, -1).includes(panel.id)) etags.delete(key);
}

// Returns the panel's HTML, or null if it has not changed since the last request.
export async function requestPanel(panel, url, { signal, quiet = false } = {}) {
  countRequests(quiet ? 0 : 1);
  try {
    return await send(`${panel.id} ${url}`, url, buildPanelHeaders(panel), { signal, quiet, read: (response) => response.text() });
  } finally {
    countRequests(quiet ? 0 : -1);
  }
}

// Returns what `read` reads from the response, or null if it is the same as the last one for this key.
async function send(key, url, headers, { signal, quiet, read }) {
  if (quiet && etags.has(key)) headers["If-None-Match"] = etags.get(key);
  const response = await fetch(url, { headers, signal, cache: "no-store", credentials: "same-origin" });
  if (response.status === 304) return null;
  if (response.headers.has("HX-Retarget")) throw new PanelError(400, await response.text());
  if (response.redirected) {
    announceSignedOut();
    if (quiet) return null;
    throw new PanelError(401);
  }
  if (response.headers.has("HX-Refresh")) return location.reload(), null;
  if (!response.ok) throw new PanelError(response.status);
  const content = await read(response);
  etags.set(key, response.headers.get("ETag")); // now: the connection may break in the body
  return content;
}

// The session ended. ui.js reloads the page, which shows the sign-in page, unless that would lose something.
export const announceSignedOut = () => document.dispatchEvent(new CustomEvent("deck:signed-out"));

// `requestPanel` for an update that nobody asked for. Panels that request the same URL at the same time share a request:
// for most of them the server spends more time on the session and the run than on the panel. `data-alone` says that a
// panel can be slow or fail, so that the others do not wait for it.
export function requestQuietly(panel, url, signal) {
  if ("alone" in panel.dataset) return requestPanel(panel, url, { signal, quiet: true });
  return new Promise((resolve, reject) => {
    if (!groups.has(url)) {
      groups.set(url, []);
      setTimeout(sendGroup, 0, url);
    }
    groups.get(url).push({ panel, signal, resolve, reject });
  });
}

async function sendGroup(url) {
  const group = groups.get(url);
  groups.delete(url);
  const [{ panel, signal }] = group;
  const requestAlone = (each) => requestPanel(each.panel, url, { signal: each.signal, quiet: true }).then(each.resolve, each.reject);
  if (group.length === 1) return requestAlone(group[0]);
  const ids = group.map((each) => each.panel.id).join(" ");
  try {
    const headers = { ...buildPanelHeaders(panel), "X-Panels": ids };
    const html = await send(`${ids} ${url}`, url, headers, { signal, quiet: true, read: (response) => response.json() });
    for (const each of group) {
      if (!html) each.resolve(null);
      else if (each.panel.id in html) each.resolve(html[each.panel.id]);
      else {
        etags.delete(`${ids} ${url}`); // the request alone may fail
        requestAlone(each); // the server has more to say than the content of the panel
      }
    }
  } catch (error) {
    group.forEach((each) => each.reject(error));
  }
}

// --- requests of the user -----------------------------------------------------------------------------------------------

// What htmx requests for a panel, for example the preview of a form that the user has changed. A live update that was
// requested before knows nothing of it.
const asked = new WeakMap(); // panel -> { count, answered }, a promise

function requestsFor(panel) {
  if (!asked.has(panel)) asked.set(panel, { count: 0, answered: Promise.resolve() });
  return asked.get(panel);
}

document.addEventListener("htmx:beforeSend", ({ detail: { elt, target, xhr } }) => {
  if (elt.matches("[hx-trigger^=load]")) return; // the next part of a search
  const requests = requestsFor(target);
  const answer = new Promise((resolve) => xhr.addEventListener("loadend", resolve));
  requests.count += 1;
  requests.answered = Promise.all([requests.answered, answer]).then(() => {}); // else each keeps the requests before
});

export const countUserRequests = (panel) => requestsFor(panel).count;

// Waits until all requests of the user for the panel are answered, also those that begin in the meantime.
export async function waitForUserRequests(panel) {
  const requests = requestsFor(panel);
  for (let count; count !== requests.count; await requests.answered) count = requests.count;
}

// --- morphing -----------------------------------------------------------------------------------------------------------

// Morphs the panel, so that focus, scroll position, selection and typed text remain. `ignoreActiveValue` spares all content of
// the focused element, so it is set only for a field.
function morph(panel, content, beforeAttributeUpdated) {
  const ignoreActiveValue = document.activeElement?.matches("input, textarea, select");
  const callbacks = { beforeAttributeUpdated, beforeNodeMorphed: (node) => !isEdited(node) };
  return window.Idiomorph.morph(panel, content, { morphStyle: "innerHTML", ignoreActiveValue, callbacks });
}

// What arrives by itself leaves open boxes open, too.
export function swapPanel(panel, html) {
  morph(panel, html, (name, node) => mayChange(name, node) && !(name === "open" && node.tagName === "DETAILS"));
  window.htmx?.process(panel);
  announceSettled(panel);
}

// `hx-swap="morph:innerHTML"`
window.htmx?.defineExtension("morph", {
  handleSwap: (style, panel, fragment) => style === "morph:innerHTML" && morph(panel, fragment, mayChange),
});

// A form that the user edits is not replaced: it contains the version that the edit is based on.
function isEdited(node) {
  if (!node.matches?.("details.edit")) return false;
  const typed = [...node.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue);
  return node.open || typed;
}

const TYPED = "textarea, input:not([type=hidden], [type=checkbox], [type=radio], [data-ours])";

// The server's HTML must not undo a selection or a typed value of the user, except values that the URL contains.
function mayChange(name, node) {
  if (name === "value") return !node.matches?.(TYPED);
  if (name === "checked") return !node.matches?.("[data-kept]"); // the server does not know its state
  if (name === "tabindex") return !node.closest?.("[data-roving]"); // roving.js sets it
  if (name === "class" || name === "aria-expanded") return !node.matches?.(".config-fold, [data-fold]"); // context.js sets them
  return name !== "aria-selected";
}

// Shows the progress bar while requests are in flight; `change` is 1 or -1.
export function countRequests(change) {
  busy += change;
  document.getElementById("busy").classList.toggle("on", busy > 0);
}

// The URL of this page with other parameters, without empty ones.
export function buildUrl(changes = {}, base = location.href) {
  const url = new URL(base, location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value == null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  return formatUrl(url);
}

// Characters of the query language are not percent-encoded.
function formatUrl(url) {
  const query = url.search.replace(/%(3A|3C|3E|3D|2F|2C)/gi, (code) => decodeURIComponent(code));
  return url.pathname + query + url.hash;
}

// A left click without modifier keys, so not one that opens a tab.
export const isPlainClick = (event) => !event.button && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;

// Runs `act` when the page is idle, at the latest after `timeout` ms. Safari has no idle callback.
export const whenIdle = (act, timeout) => (globalThis.requestIdleCallback ? requestIdleCallback(act, { timeout }) : setTimeout(act, 50));
