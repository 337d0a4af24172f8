// A key presses the element with the same data-key. Which keys there are stands in one table on the server.
import { asleep, keyOf } from "./keyboard_layout.js";

const TYPING = "input:not([type=range], [type=checkbox], [type=radio], [type=submit], [type=button]), textarea, select, [contenteditable]";
const GO = "o";
const PATIENCE = 4000; // ms for the key after it
const steps = [];
let going = 0;

// Esc undoes the innermost thing that is open: each asks in turn, the first that says true has done it.
export const onEscape = (step) => steps.push(step);

// A drawer that is closed is hidden by style alone; its buttons keep their keys.
export const pressable = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility() && !one.disabled);

// Of several, the one in the sample that has the focus.
function press(selector) {
  const all = pressable(selector);
  const found = all.find((one) => one.closest("[data-id]:focus-within")) ?? all[0];
  if (!found) return false;
  if (found.matches(TYPING)) {
    found.focus();
    found.select?.();
  } else found.click();
  return true;
}

const named = (attribute, key) => `[data-${attribute}="${CSS.escape(key)}"]`;

// --- what they are called ---------------------------------------------------------------------------------------------

const ANYWHERE = /^(Ctrl|⌘|Esc|←|→)/; // answered by more than one button
const LIVE = "[data-key]:not([hidden], :disabled)";

// Footer and help name the keys that do something here; a span like 1–6 does where its first one does.
function name(rows) {
  const here = new Set([...document.querySelectorAll(LIVE)].map((one) => one.dataset.key));
  const does = ({ textContent: key }) => ANYWHERE.test(key) || here.has(key[1] === "–" ? key[0] : key);
  for (const row of document.querySelectorAll(rows)) row.hidden = ![...row.querySelectorAll("kbd")].some(does);
}

const foot = () => name(".foot-keys > span");
foot();
for (const news of ["deck:settled", "htmx:afterSettle"]) document.addEventListener(news, foot);
document.querySelector("[data-help]")?.addEventListener("click", () => name("#help > div [data-keys]"));

// --- o, then a letter -------------------------------------------------------------------------------------------------

// The hint says what may follow; it leaves with the next key, or when none comes.
function begin() {
  const places = new Map(pressable("[data-go]").map((one) => [one.dataset.go, one.title || one.textContent.trim()]));
  if (!places.size) return false;
  const hint = Object.assign(document.createElement("p"), { id: "going", className: "toast going" });
  hint.setAttribute("role", "status");
  for (const [key, place] of places) {
    const one = hint.appendChild(document.createElement("span"));
    one.append(Object.assign(document.createElement("kbd"), { textContent: key }), ` ${place}`);
  }
  document.body.append(hint);
  going = setTimeout(leave, PATIENCE);
  return true;
}

function leave() {
  clearTimeout(going);
  going = 0;
  document.getElementById("going")?.remove();
}

// --- listening --------------------------------------------------------------------------------------------------------

// True when the key meant something.
function pressed(key, event) {
  if (going) {
    leave();
    return press(named("go", key)) || key !== "Tab";
  }
  if ((key === "Enter" || key === " ") && event.target.closest?.("a, button, summary")) return false;
  return press(named("key", key === " " ? "Space" : key)) || (key === GO && begin());
}

function escaped(typing, event) {
  if (going) leave();
  else if (steps.some((step) => step())) event.preventDefault();
  else if (typing) event.target.blur();
  else press(named("key", "Esc"));
}

document.addEventListener("keydown", (event) => {
  if (asleep(event) || document.querySelector("dialog[open]")) return;
  const key = keyOf(event);
  if (!key || key === "Shift" || key === "AltGraph") return;
  const typing = event.target.matches?.(TYPING);
  if (key === "Escape") return escaped(typing, event);
  if (typing || (key.length === 1 && document.body.dataset.keys === "off")) return;
  if (pressed(key, event)) event.preventDefault();
});
