// Asks an address for one panel's content and puts it in place. The address is the page's own; HX-Target names the panel.
import { fill, gettext } from "./i18n.js";

const etags = new Map();
let busy = 0;

export const settled = (panel) => document.dispatchEvent(new CustomEvent("deck:settled", { detail: { panel } }));

// Gives the panel's HTML; null when nothing changed since the last time this page asked.
export async function ask(panel, url, { signal, quiet = false } = {}) {
  const key = `${panel.id} ${url}`;
  const headers = { "HX-Request": "true", "HX-Target": panel.id };
  if (quiet && etags.has(key)) headers["If-None-Match"] = etags.get(key);
  work(quiet ? 0 : 1);
  try {
    const answer = await fetch(url, { headers, signal, cache: "no-store", credentials: "same-origin" });
    if (answer.status === 304) return null;
    if (answer.headers.has("HX-Retarget")) return null;
    if (answer.redirected || answer.headers.has("HX-Refresh")) return location.reload(), null;
    if (!answer.ok) throw new Error(fill(gettext("The server answered {status}."), { status: answer.status }));
    etags.set(key, answer.headers.get("ETag"));
    return await answer.text();
  } finally {
    work(quiet ? 0 : -1);
  }
}

// Morphs, so that focus, scroll, half-typed text and open boxes stay. What is spared is all that is in the element that
// has the focus, so only where somebody may type into it.
export function place(panel, html) {
  const ignoreActiveValue = document.activeElement?.matches("input, textarea, select");
  window.Idiomorph.morph(panel, html, { morphStyle: "innerHTML", ignoreActiveValue, callbacks: { beforeAttributeUpdated: keep, beforeNodeMorphed: (node) => !begun(node) } });
  window.htmx?.process(panel);
  settled(panel);
}

// A form that somebody is in stays whole: it says which version its text began with.
function begun(node) {
  if (!node.matches?.("details.edit")) return false;
  const typed = [...node.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue);
  return node.open || typed;
}

// What a person did to an element is not the server's to undo, except where the address already says it.
function keep(name, node) {
  if (name === "value" && node.matches?.("[type=hidden], [data-ours]")) return true;
  return !(name === "aria-selected" || name === "value" || (name === "open" && node.tagName === "DETAILS"));
}

export function work(change) {
  busy += change;
  document.getElementById("busy").classList.toggle("on", busy > 0);
}

// This page's address with other parameters; empty ones are left out.
export function address(changes = {}, base = location.href) {
  const url = new URL(base, location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value == null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  return readable(url);
}

// The query language's signs stay as typed.
function readable(url) {
  const query = url.search.replace(/%3A/gi, ":").replace(/%3C/gi, "<").replace(/%3E/gi, ">").replace(/%3D/gi, "=").replace(/%2F/gi, "/").replace(/%2C/gi, ",");
  return url.pathname + query + url.hash;
}

// A click that asks for nothing of the browser's own, like another tab.
export const plain = (event) => !event.button && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;

// When the page has nothing better to do, at the latest after `most` ms. Safari does not tell.
export const rested = (act, most) => (globalThis.requestIdleCallback ? requestIdleCallback(act, { timeout: most }) : setTimeout(act, 50));
