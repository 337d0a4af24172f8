// Loads a sample into the pane. Until it is shown, the pane is dimmed, keys that act on the sample wait, and the sample
// before it can't be used. If the server does not answer, the pane says so and tries again.
import { fill, gettext } from "../common/i18n.js";
import { dropKeys, holdKeys, listWaitingKeys } from "../common/key_queue.js";
import { PanelError, announceSettled, requestPanel } from "../common/panel.js";
import { MESSAGE_OF_ERROR, showMessage } from "../common/ui.js";

const DIM_AFTER = 150, MIN_RETRY = 1000, MAX_RETRY = 30000, TIMEOUT = 30000; // ms
const PASSING = new Set("jk/?swcoyYRL{}"); // keys that do not act on the sample in the pane
const pane = document.getElementById("sample");
let request = null, failed = false;

export const isPaneLoading = () => request !== null;

export function cancelPane() {
  request?.abort();
  endLoading();
}

// Shows the sample from `cached` (a promise of its HTML, or of nothing) or from the server. `toTop` scrolls up.
export function loadPane(url, cached, toTop) {
  request?.abort();
  const mine = (request = new AbortController());
  failed = false;
  pane.setAttribute("aria-busy", "true");
  pane.querySelector("article")?.setAttribute("inert", "");
  return holdKeys(load(mine, url, cached, toTop), mayPass);
}

async function load(mine, url, cached, toTop) {
  const { signal } = mine;
  const aborted = new Promise((resolve) => signal.addEventListener("abort", () => resolve(null)));
  const dimming = setTimeout(() => cover(gettext("Loading sample …")), DIM_AFTER);
  try {
    for (let tries = 0; !signal.aborted; tries++) {
      try {
        const ready = tries ? null : await Promise.race([cached, aborted]);
        if (signal.aborted) return;
        const html = ready ?? (await requestPanel(pane, url, { signal: addTimeout(signal, tries) }));
        if (html == null || signal.aborted) return;
        endLoading();
        put(html, toTop);
        return;
      } catch (error) {
        if (signal.aborted) return;
        clearTimeout(dimming);
        await waitForRetry(error, tries, signal);
      }
    }
  } finally {
    clearTimeout(dimming);
    if (request === mine) endLoading();
  }
}

// Each try may take longer than the one before: a long text on a slow line needs time.
// Browsers before 2024 cannot join two signals, and have no limit.
const addTimeout = (signal, tries) => AbortSignal.any?.([signal, AbortSignal.timeout(TIMEOUT * (tries + 1))]) ?? signal;

function put(html, toTop) {
  if (toTop) pane.scrollTop = 0; // after the swap, this would cause a second layout
  pane.innerHTML = html;
  window.htmx.process(pane);
  if (toTop) announce();
  announceSettled(pane);
}

// Screen readers name the sample that a key has opened: the focus stays in the list.
function announce() {
  const status = document.getElementById("sample-status");
  if (status) status.textContent = pane.querySelector("[data-chat]")?.dataset.chat ?? "";
}

// --- what the pane says -----------------------------------------------------------------------------------------------

function cover(text, retry) {
  pane.classList.add("loading");
  pane.classList.toggle("failed", failed);
  pane.querySelector(".pane-state")?.remove();
  const state = Object.assign(document.createElement("div"), { className: "pane-state" });
  const words = Object.assign(document.createElement("p"), { textContent: text });
  words.setAttribute("role", "status");
  state.append(words, Object.assign(document.createElement("p"), { className: "muted pane-keys" }));
  if (retry) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "small", textContent: gettext("Try now") });
    button.addEventListener("click", retry);
    state.append(button);
  }
  pane.prepend(state);
  showKeys();
}

function endLoading() {
  request = null;
  failed = false;
  pane.removeAttribute("aria-busy");
  pane.classList.remove("loading", "failed");
  pane.querySelector(".pane-state")?.remove();
  pane.querySelector("article")?.removeAttribute("inert");
}

function mayPass({ key, ctrlKey, metaKey }, typing) {
  if (typing || ctrlKey || metaKey || document.querySelector("dialog[open], #going")) return true;
  return PASSING.has(key) || (key.length > 1 && key !== "Enter");
}

// Waiting keys are shown in the pane. If the sample cannot be loaded, they are not used.
function showKeys() {
  if (failed) return rejectKeys();
  const line = pane?.querySelector(".pane-keys");
  const keys = listWaitingKeys().join(" ");
  if (line) line.textContent = keys ? fill(gettext("waiting keys: {keys} (Esc drops them)"), { keys }) : "";
}

function rejectKeys() {
  const keys = dropKeys().join(" ");
  if (keys) showMessage(fill(gettext("Not used, since the sample is not loaded: {keys}"), { keys }), MESSAGE_OF_ERROR);
}
document.addEventListener("deck:keys", () => isPaneLoading() && listWaitingKeys().length && showKeys());

// Waits before the next try: for some time, or until the server is there again. A client error is not tried by itself.
function waitForRetry(error, tries, signal) {
  const isRefused = error instanceof PanelError && error.status < 500;
  const wait = Math.min(MAX_RETRY, MIN_RETRY * 2 ** tries);
  const reason = error instanceof PanelError ? error.message : gettext("Server unreachable.");
  const next = fill(gettext("This sample is not loaded, retrying in {seconds} s."), { seconds: Math.ceil(wait / 1000) });
  failed = true;
  return new Promise((resolve) => {
    cover(`${reason} ${isRefused ? gettext("This sample is not loaded.") : next}`, resolve);
    signal.addEventListener("abort", resolve);
    if (isRefused) return;
    setTimeout(resolve, wait);
    document.addEventListener("deck:connected", resolve, { once: true });
  });
}
