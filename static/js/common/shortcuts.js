// A key clicks the element with the same data-key. The server has the table of all keys.
import { isIgnored, isTurnedOff, readKey } from "./keyboard_layout.js";

const BUTTONS = "[type=range], [type=checkbox], [type=radio], [type=submit], [type=button]";
const TYPING = `input:not(${BUTTONS}), textarea, select, [contenteditable]`;
const GO = "o";
const GO_TIMEOUT = 4000; // ms for the key after it
const escapeHandlers = [];
let hintTimer = 0;

// Esc closes one open part of the page: the handlers run in order until one returns true.
export const onEscape = (handler) => escapeHandlers.push(handler);

// Elements that a key can click. Buttons in a closed drawer are hidden only by CSS and do not count.
const isPressable = (element) => element.checkVisibility() && !element.disabled;
export const pressable = (selector) => [...document.querySelectorAll(selector)].filter(isPressable);

// A key that is held moves on and on, but it sends or chooses only once: the next time it would act on another sample.
const decides = (element) => ["submit", "checkbox", "radio"].includes(element.type);

// If several elements have the key, the one in the focused sample wins.
function press(selector, isRepeated = false) {
  const all = pressable(selector);
  const target = all.find((element) => element.closest("[data-id]:focus-within")) ?? all[0];
  if (!target) return false;
  if (target.matches(TYPING)) {
    target.focus();
    target.select?.();
  } else if (!(isRepeated && decides(target))) target.click();
  return true;
}

const selectorOf = (attribute, key) => `[data-${attribute}="${CSS.escape(key)}"]`;

// --- names of the keys ------------------------------------------------------------------------------------------------

const ANYWHERE = /^(Ctrl|⌘|Esc|[←→↑↓])/; // handled by more than one button
const LIVE = "[data-key]:not([hidden], :disabled)";

// Footer and help show only keys that work on this page. A range like 1–6 works if its first key works.
function showUsableKeys(rows) {
  const here = new Set([...document.querySelectorAll(LIVE)].map((element) => element.dataset.key));
  const does = ({ textContent: key }) => ANYWHERE.test(key) || here.has(key[1] === "–" ? key[0] : key);
  for (const row of document.querySelectorAll(rows)) row.hidden = ![...row.querySelectorAll("kbd")].some(does);
}

const updateFooter = () => showUsableKeys(".foot-keys > span");
updateFooter();
for (const name of ["deck:settled", "htmx:afterSettle"]) document.addEventListener(name, updateFooter);
document.querySelector("[data-help]")?.addEventListener("click", () => showUsableKeys("#help > div [data-keys]"));

// --- o, then a letter -------------------------------------------------------------------------------------------------

// The hint lists the possible second keys. It closes on the next key or after a timeout.
function openHint() {
  const targets = new Map(pressable("[data-go]").map((element) => [element.dataset.go, element.title || element.textContent.trim()]));
  if (!targets.size) return false;
  const hint = Object.assign(document.createElement("p"), { id: "going", className: "toast going" });
  hint.setAttribute("role", "status");
  for (const [key, label] of targets) {
    const element = hint.appendChild(document.createElement("span"));
    element.append(Object.assign(document.createElement("kbd"), { textContent: key }), ` ${label}`);
  }
  document.body.append(hint);
  hintTimer = setTimeout(closeHint, GO_TIMEOUT);
  return true;
}

function closeHint() {
  clearTimeout(hintTimer);
  hintTimer = 0;
  document.getElementById("going")?.remove();
}

// --- listening --------------------------------------------------------------------------------------------------------

// Returns true if the key was used.
function handleKey(key, event) {
  if (hintTimer) {
    closeHint();
    return press(selectorOf("go", key)) || key !== "Tab";
  }
  const focused = event.target.closest?.("a, button, summary");
  if (key === " " && focused?.matches("a[role=button], a[role=checkbox]")) return event.repeat || (focused.click(), true);
  if (focused && (key === "Enter" || key === " ")) return event.repeat && decides(focused);
  return press(selectorOf("key", key === " " ? "Space" : key), event.repeat) || (key === GO && openHint());
}

function handleEscape(typing, event) {
  if (hintTimer) closeHint();
  else if (escapeHandlers.some((handler) => handler())) event.preventDefault();
  else if (typing) event.target.blur();
  else press(selectorOf("key", "Esc"));
}

document.addEventListener("keydown", (event) => {
  if (isIgnored(event) || document.querySelector("dialog[open]")) return;
  const key = readKey(event);
  if (!key || key === "Shift" || key === "AltGraph") return;
  const typing = event.target.matches?.(TYPING);
  if (key === "Escape") return handleEscape(typing, event);
  if (typing || isTurnedOff(key)) return;
  if (handleKey(key, event)) event.preventDefault();
});
