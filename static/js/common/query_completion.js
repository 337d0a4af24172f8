// The completion of a query box (a combobox): names, then values with the number of samples or runs that they leave.
//
// The box is an <input> in a form with `data-choices` (the URL of the completions). The list is the element that
// `aria-controls` names.
import { gettext } from "./i18n.js";
import { isIgnored } from "./keyboard_layout.js";

const WAIT = 90; // ms between the last key and the request

export function attachCompletion(box) {
  const form = box.form;
  const list = document.getElementById(box.getAttribute("aria-controls"));
  let choices = [], active = -1, span = [0, 0], completed, loading, waiting;
  let keys = []; // pressed before the choices for the current text have arrived

  const open = () => !list.hidden;

  function close() {
    clearTimeout(waiting);
    loading?.abort();
    loading = undefined;
    list.hidden = true;
    active = -1;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  }

  // The shown choices are for an earlier text: a key that selects one waits for those of the current text.
  function scheduleCompletion() {
    clearTimeout(waiting);
    completed = undefined;
    keys = [];
    if (active >= 0) highlight(-1);
    waiting = setTimeout(complete, WAIT);
  }

  async function complete() {
    clearTimeout(waiting);
    loading?.abort();
    loading = new AbortController();
    const { signal } = loading;
    const text = box.value, at = box.selectionStart;
    const url = new URL(form.dataset.choices, location.href);
    url.searchParams.set("q", text);
    url.searchParams.set("at", [...text.slice(0, at)].length);
    try {
      const response = await fetch(url, { signal, credentials: "same-origin" });
      if (!response.ok) return giveUp();
      const completions = await response.json();
      if (signal.aborted || box.value !== text) return;
      completed = text;
      renderChoices(completions);
      useKeys();
      const term = text.slice(unit(completions.start), unit(completions.end));
      const isWhole = completions.choices.some((choice) => choice.whole && choice.text === term);
      if (isWhole) box.dispatchEvent(new CustomEvent("deck:term"));
    } catch {
      if (!signal.aborted) giveUp(); // the box works without completion
    }
  }

  function giveUp() {
    completed = box.value;
    close();
    useKeys();
  }

  function useKeys() {
    const pressed = keys;
    keys = [];
    pressed.forEach(useKey);
  }

  function useKey(key) {
    if (open() && key === "Tab") insertChoice(Math.max(active, 0));
    else if (open() && key === "Enter" && active >= 0) insertChoice(active);
    else if (key === "Enter") form.requestSubmit();
    else if (open()) choose(key === "ArrowDown" ? 1 : -1);
  }

  // The server counts characters; a text field counts UTF-16 code units.
  const unit = (count) => [...box.value].slice(0, count).join("").length;

  function renderChoices(completions) {
    choices = completions.choices;
    span = [unit(completions.start), unit(completions.end)];
    if (!choices.length || document.activeElement !== box) return close();
    list.replaceChildren(...choices.map(option), hint());
    list.hidden = false;
    box.setAttribute("aria-expanded", "true");
    highlight(-1);
  }

  function option(choice, at) {
    const line = Object.assign(document.createElement("li"), { id: `${list.id.replace(/s$/, "")}-${at}` });
    line.setAttribute("role", "option");
    line.setAttribute("aria-selected", "false");
    const counted = choice.count == null ? "" : choice.count.toLocaleString("en");
    for (const text of [choice.text, choice.detail, counted]) {
      line.append(Object.assign(document.createElement("span"), { textContent: text }));
    }
    line.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      if (completed === box.value) insertChoice(at); // else the place that it replaces is another by now
    });
    return line;
  }

  function hint() {
    const textContent = gettext("↓ ↑ select · Tab accept · Esc close");
    const line = Object.assign(document.createElement("li"), { className: "hint", textContent });
    line.setAttribute("aria-hidden", "true");
    return line;
  }

  function highlight(at) {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = at;
    if (at < 0) return box.removeAttribute("aria-activedescendant");
    list.children[active].setAttribute("aria-selected", "true");
    list.children[active].scrollIntoView({ block: "nearest" });
    box.setAttribute("aria-activedescendant", list.children[active].id);
  }

  function choose(by) {
    const count = choices.length;
    highlight(active < 0 && by < 0 ? count - 1 : (active + by + count) % count);
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
    if (isIgnored(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const isArrow = key === "ArrowDown" || key === "ArrowUp", isTab = key === "Tab" && !event.shiftKey;
    const isWaiting = completed !== box.value && (keys.length > 0 || isArrow || (isTab && open()));
    if (isWaiting && (isArrow || isTab || key === "Enter")) {
      keys.push(key);
      if (keys.length === 1) complete();
    } else if (open() && key === "Escape") close();
    else if (!open() && key === "ArrowDown") complete();
    else if (open() && (isArrow || isTab || (key === "Enter" && active >= 0))) useKey(key);
    else {
      if (open() && key === "Enter") close();
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });

  return { close };
}
