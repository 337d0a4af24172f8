// The query box: completion (combobox), chart and filter links without a page load, menus, brushes.
import { gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { buildUrl } from "../common/panel.js";

const form = document.getElementById("query");
const box = document.getElementById("q");
const list = document.getElementById("q-choices");
const WAIT = 90, MENUS = ".menu[open]"; // ms between the last key and the request for completions
let choices = [], active = -1, span = [0, 0], loading, waiting;

// --- running a query --------------------------------------------------------------------------------------------------

// A chosen query gets a history entry. Typing replaces the current entry.
function go(href) {
  close();
  history.replaceState({ htmx: true }, "");
  history.pushState({ htmx: true }, "", buildUrl({ sel: "", start: "" }, new URL(href, location.href).href));
  updateForm();
  window.htmx.ajax("GET", location.href, { source: "#result", target: "#result", swap: "morph:innerHTML" });
}

// Copies the parameters of the URL into the form.
function updateForm() {
  const now = new URLSearchParams(location.search);
  box.value = now.get("q") ?? "";
  const sort = form.querySelector("[name=sort]");
  sort.value = now.get("sort") ?? "";
  sort.disabled = !sort.value;
}

const write = (q) => go(buildUrl({ q }));

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("#result a[data-ask]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  link.closest(".menu")?.removeAttribute("open");
  go(link.getAttribute("href"));
});

document.addEventListener("click", (event) => {
  const stop = event.target.closest?.("[data-stop]");
  stop?.closest("[data-searching]").setAttribute("data-stopped", "");
  stop?.replaceWith("· " + gettext("stopped"));
  for (const menu of document.querySelectorAll(MENUS)) if (!menu.contains(event.target)) menu.open = false;
});

onEscape(() => {
  const menu = document.querySelector(MENUS);
  if (!menu) return false;
  menu.open = false;
  menu.querySelector("summary").focus();
  return true;
});

// Ignores a response to an outdated query.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { elt, requestConfig, xhr } = event.detail;
  if (elt.id !== "result" || !xhr.responseURL) return;
  const sent = new URL(xhr.responseURL).searchParams;
  const late = (sent.get("q") ?? "") !== box.value || (sent.get("sort") ?? "") !== form.querySelector("[name=sort]").value;
  if (late || requestConfig.elt.hasAttribute("data-stopped")) event.detail.shouldSwap = false;
});

document.addEventListener("htmx:afterSwap", (event) => {
  if (!["result", "q-error"].includes(event.target.id)) return;
  const wrong = document.getElementById("q-error").textContent.trim();
  box.setAttribute("aria-invalid", String(Boolean(wrong)));
  const goesOn = event.detail.requestConfig?.elt.matches("[data-searching]");
  if (event.target.id === "result" && !goesOn) document.getElementById("table").scrollTop = 0;
});

// --- completion -------------------------------------------------------------------------------------------------------

const open = () => !list.hidden;

function close() {
  clearTimeout(waiting);
  loading?.abort();
  list.hidden = true;
  active = -1;
  box.setAttribute("aria-expanded", "false");
  box.removeAttribute("aria-activedescendant");
}

function scheduleCompletion() {
  clearTimeout(waiting);
  waiting = setTimeout(complete, WAIT);
}

async function complete() {
  loading?.abort();
  loading = new AbortController();
  const at = box.selectionStart;
  const url = new URL(form.dataset.choices, location.href);
  url.searchParams.set("q", box.value);
  url.searchParams.set("at", [...box.value.slice(0, at)].length);
  try {
    const response = await fetch(url, { signal: loading.signal, credentials: "same-origin" });
    if (!response.ok) return close();
    renderChoices(await response.json());
  } catch {
    // Aborted by the next key, or the server does not respond: the box works without completion.
  }
}

// The server counts characters; a text field counts UTF-16 code units.
const unit = (count) => [...box.value].slice(0, count).join("").length;

function renderChoices(completions) {
  choices = completions.choices;
  span = [unit(completions.start), unit(completions.end)];
  if (!choices.length || document.activeElement !== box) return close();
  active = -1;
  list.replaceChildren(...choices.map(option), hint());
  list.hidden = false;
  box.setAttribute("aria-expanded", "true");
  box.removeAttribute("aria-activedescendant");
}

function option(choice, at) {
  const line = Object.assign(document.createElement("li"), { id: `q-choice-${at}` });
  line.setAttribute("role", "option");
  line.setAttribute("aria-selected", "false");
  const counted = choice.count == null ? "" : choice.count.toLocaleString("en");
  for (const text of [choice.text, choice.detail, counted]) {
    line.append(Object.assign(document.createElement("span"), { textContent: text }));
  }
  line.addEventListener("pointerdown", (event) => (event.preventDefault(), insertChoice(at)));
  return line;
}

function hint() {
  const textContent = gettext("↓ ↑ select · Tab accept · Esc close");
  const line = Object.assign(document.createElement("li"), { className: "hint", textContent });
  line.setAttribute("aria-hidden", "true");
  return line;
}

function choose(by) {
  const count = choices.length;
  list.children[active]?.setAttribute("aria-selected", "false");
  active = active < 0 && by < 0 ? count - 1 : (active + by + count) % count;
  list.children[active].setAttribute("aria-selected", "true");
  list.children[active].scrollIntoView({ block: "nearest" });
  box.setAttribute("aria-activedescendant", `q-choice-${active}`);
}

// Inserts a choice. A complete term runs the query; the start of a term requests the next completions.
function insertChoice(at) {
  const { text, whole } = choices[at];
  const rest = box.value.slice(span[1]);
  const gap = whole && !/^[\s)）]/.test(rest) ? " " : "";
  box.setRangeText(text + gap, span[0], span[1], "end");
  close();
  if (whole) box.dispatchEvent(new Event("input", { bubbles: true }));
  clearTimeout(waiting);
  if (!whole) complete();
}

box.addEventListener("input", (event) => {
  if (!event.isComposing) scheduleCompletion();
});
box.addEventListener("compositionend", scheduleCompletion);
box.addEventListener("blur", close);

box.addEventListener("keydown", (event) => {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  const down = event.key === "ArrowDown", up = event.key === "ArrowUp";
  if (!open()) {
    if (down) complete();
    else return;
  } else if (down || up) choose(down ? 1 : -1);
  else if (event.key === "Escape") close();
  else if ((event.key === "Enter" && active >= 0) || (event.key === "Tab" && !event.shiftKey)) insertChoice(Math.max(active, 0));
  else {
    if (event.key === "Enter") close();
    return;
  }
  event.preventDefault();
  event.stopPropagation();
});

import("./brush.js").then(({ attachBrush }) => {
  attachBrush(write);
  form.toggleAttribute("data-scripted", true);
});
