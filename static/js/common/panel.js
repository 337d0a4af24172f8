// Requests the content of one panel and swaps it in. The URL is that of the page; HX-Target names the panel.
import { fill, gettext } from "./i18n.js";

const etags = new Map();
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

// The server answered, but not with the panel. `html` is its message about a query with an error.
export class PanelError extends Error {
  constructor(status, html = "") {
    super(fill(gettext("The server returned status {status}."), { status }));
    Object.assign(this, { status, html });
  }
}

// The next request gets the panel's HTML even if it is the same: what arrived last is not on the page.
export function forgetPanel(panel) {
  for (const key of etags.keys()) if (key.startsWith(`${panel.id} `)) etags.delete(key);
}

// Returns the panel's HTML, or null if it has not changed since the last request.
export async function requestPanel(panel, url, { signal, quiet = false } = {}) {
  const key = `${panel.id} ${url}`;
  const headers = buildPanelHeaders(panel);
  if (quiet && etags.has(key)) headers["If-None-Match"] = etags.get(key);
  countRequests(quiet ? 0 : 1);
  try {
    const response = await fetch(url, { headers, signal, cache: "no-store", credentials: "same-origin" });
    if (response.status === 304) return null;
    if (response.headers.has("HX-Retarget")) throw new PanelError(400, await response.text());
    if (response.redirected || response.headers.has("HX-Refresh")) return location.reload(), null;
    if (!response.ok) throw new PanelError(response.status);
    etags.set(key, response.headers.get("ETag"));
    return await response.text();
  } finally {
    countRequests(quiet ? 0 : -1);
  }
}

// Morphs the panel, so that focus, scroll position, typed text and open boxes remain. `ignoreActiveValue` spares all content
// of the focused element, so it is set only for a field.
export function swapPanel(panel, html) {
  const ignoreActiveValue = document.activeElement?.matches("input, textarea, select");
  const callbacks = { beforeAttributeUpdated: mayChange, beforeNodeMorphed: (node) => !isEdited(node) };
  window.Idiomorph.morph(panel, html, { morphStyle: "innerHTML", ignoreActiveValue, callbacks });
  window.htmx?.process(panel);
  announceSettled(panel);
}

// A form that the user edits is not replaced: it contains the version that the edit is based on.
function isEdited(node) {
  if (!node.matches?.("details.edit")) return false;
  const typed = [...node.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue);
  return node.open || typed;
}

// The server's HTML must not undo a selection, an open box or a field value of the user, except values that the URL contains.
function mayChange(name, node) {
  if (name === "value" && node.matches?.("[type=hidden], [data-ours]")) return true;
  if (name === "tabindex") return !node.closest?.("[data-roving]"); // roving.js sets it
  return !(name === "aria-selected" || name === "value" || (name === "open" && node.tagName === "DETAILS"));
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
