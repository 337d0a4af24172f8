// Keys that wait. It loads before all other scripts: a key that is pressed before they are loaded waits for them. Later,
// keys wait while the page loads what they act on (key_queue.js). They are used in the order in which they were pressed.
//
// Back, too, works before the scripts are loaded: htmx reloads the page for it, but only once it has its own handler.
// Pages without htmx have no entries of their own, and the link to the content is one that must not reload.
document.documentElement.classList.add("js"); // here, since what it hides would move the page if it came later
(() => {
  const MAX_WAITING = 60, MAX_AGE = 15000; // ms since the key was pressed, or since the key before it was used
  const BUTTONS = "[type=range], [type=checkbox], [type=radio], [type=submit], [type=button]";
  const FIELD = `input:not(${BUTTONS}), textarea, select, [contenteditable]`;
  const gates = new Set(); // { passes }, a function that is true if a key may pass
  let waiting = [], replaying = false, lastUsed = 0, started = false, start;
  addEventListener("popstate", () => onpopstate || started || location.reload());

  const isTyping = () => Boolean(document.activeElement?.matches(FIELD));
  const isHeld = (key) => [...gates].some((gate) => !gate.passes(key, isTyping()));
  const announce = () => document.dispatchEvent(new CustomEvent("deck:keys"));

  // Keys of the page, not of the browser. After a key that waits, the keys of a text field wait too.
  function isOurs({ key, ctrlKey, metaKey, altKey, target }) {
    if (ctrlKey || metaKey) return /^k$/i.test(key);
    if (key === " ") return waiting.length > 0 || Boolean(document.querySelector("[data-key=Space]") && !isPressable(target));
    if (key.length === 1) return document.body?.dataset.keys !== "off" && (!altKey || "[]{}/?".includes(key));
    if (key === "Enter") return waiting.length > 0 || !isPressable(target);
    if (!started && /^(Arrow|Home$|End$)/.test(key) && target.closest?.("[data-roving]")) return true;
    return waiting.length > 0 && /^(Arrow|Backspace$|Delete$|Home$|End$|Tab$)/.test(key);
  }
  const isPressable = (target) => Boolean(target.closest?.("a, button, summary"));
  // Repetitions of a key that is held do not wait: they would decide about what is not shown yet. Those of j, k and the arrows
  // move, and those in a field type.
  const moves = ({ key, code }) => /^[jk]$/i.test(key) || /^Key[JK]$/.test(code);
  const isRepetition = (event) => event.repeat && (event.key === "Enter" || (event.key.length === 1 && !moves(event) && !isTyping()));

  addEventListener("keydown", (event) => {
    if (replaying || event.isComposing || event.keyCode === 229) return;
    if (event.key === "Escape" && waiting.length) drop();
    else if (!isOurs(event) || !(waiting.length || isHeld(event))) return;
    else if (waiting.length < MAX_WAITING && !isRepetition(event)) waiting.push({ event, time: performance.now() });
    event.preventDefault();
    event.stopImmediatePropagation();
    announce();
  }, true);

  // The user goes on with the mouse: keys from before would act at another place.
  addEventListener("pointerdown", () => waiting.length && drop(), true);

  // Empties the queue. Returns the names of the keys.
  function drop() {
    const names = waiting.map(({ event }) => event.key);
    waiting = [];
    announce();
    return names;
  }

  function flush() {
    if (replaying) return;
    while (waiting.length && !isHeld(waiting[0].event)) {
      if (performance.now() - Math.max(waiting[0].time, lastUsed) > MAX_AGE) return reject();
      replay(waiting.shift().event);
      lastUsed = performance.now();
    }
    announce();
  }

  // A key that waited too long would surprise, and the keys after it would act on something else than meant.
  function reject() {
    document.dispatchEvent(new CustomEvent("deck:late", { detail: drop() }));
  }

  function replay({ key, code, shiftKey, ctrlKey, metaKey, altKey }) {
    const target = document.activeElement ?? document.body;
    const options = { key, code, shiftKey, ctrlKey, metaKey, altKey, bubbles: true, cancelable: true, composed: true };
    replaying = true;
    try {
      if (target.dispatchEvent(new KeyboardEvent("keydown", options)) && !ctrlKey && !metaKey) applyDefault(target, key);
    } finally {
      replaying = false;
    }
  }

  // What the browser does with a key that a person presses, but not with one that a script sends.
  function applyDefault(target, key) {
    if (target.matches(FIELD) && target.setRangeText) return typeInto(target, key);
    if ((key === "Enter" || key === " ") && target.matches("a, button, summary")) click(target);
  }

  // A link of a drawing has no method for it.
  function click(target) {
    if (target.click) target.click();
    else target.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  }

  function typeInto(field, key) {
    const [from, to] = [field.selectionStart ?? field.value.length, field.selectionEnd ?? field.value.length];
    if (key === "Enter" && field.form && !field.matches("textarea")) {
      return field.form.requestSubmit(field.form.querySelector("button:not([type=button]), [type=submit]"));
    }
    if (key === "Backspace") field.setRangeText("", from === to ? Math.max(0, from - 1) : from, to, "end");
    else if (key.length === 1 || key === "Enter") field.setRangeText(key === "Enter" ? "\n" : key, from, to, "end");
    else return;
    field.dispatchEvent(new InputEvent("input", { bubbles: true, inputType: "insertText", data: key }));
  }

  // Keys wait until the promise settles, except those for which `passes(key, typing)` is true. Returns the promise.
  function waitFor(promise, passes = (_key, typing) => typing) {
    const gate = { passes };
    gates.add(gate);
    const open = () => {
      gates.delete(gate);
      flush();
    };
    promise.then(open, open);
    return promise;
  }

  // --- from page to page ------------------------------------------------------------------------------------------------

  const STORE = "waiting keys", MAX_LEAVING = 10000; // ms
  const plain = ({ key, code, shiftKey, ctrlKey, metaKey, altKey }) => ({ key, code, shiftKey, ctrlKey, metaKey, altKey });

  // Keys after the one that leaves the page are for the next page. If the page stays, for example after a download, they are
  // named and not used. A form is sent a moment after its key, before the browser says that the page is left.
  const leaving = new Set(); // functions that end the waiting
  function waitForNextPage() {
    waitFor(new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        leaving.delete(end);
        resolve();
      };
      const timer = setTimeout(() => (waiting.length && reject(), end()), MAX_LEAVING);
      leaving.add(end);
    }));
  }
  addEventListener("beforeunload", waitForNextPage);
  addEventListener("submit", ({ target, defaultPrevented }) => {
    if (!defaultPrevented && target.getAttribute("method") !== "dialog" && !target.hasAttribute("target")) waitForNextPage();
  });
  addEventListener("pagehide", () => {
    const keys = waiting.map(({ event }) => plain(event));
    if (keys.length) sessionStorage.setItem(STORE, JSON.stringify({ keys, time: Date.now() }));
    waiting = [];
  });
  // Back may show the page as it was left.
  addEventListener("pageshow", ({ persisted }) => {
    if (!persisted) return;
    takeOver();
    for (const end of leaving) end();
    flush();
  });

  // Without a storage, or with a strange entry, no key is taken over.
  function takeOver() {
    try {
      const { keys = [], time = 0 } = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
      sessionStorage.removeItem(STORE);
      if (Date.now() - time < MAX_AGE) waiting = keys.map((event) => ({ event, time: performance.now() }));
    } catch {}
  }

  waitFor(new Promise((resolve) => {
    start = () => {
      started = true;
      resolve();
    };
  }));
  takeOver();
  globalThis.keyQueue = { waitFor, drop, start, names: () => waiting.map(({ event }) => event.key) };
})();
