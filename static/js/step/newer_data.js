// Newer data: list, strip, sample and pin stay as they are, and a bar says what has arrived. One press shows it. A page that
// nobody has touched follows instead: all of them change together as it arrives.
import { fill, gettext, ngettext } from "../common/i18n.js";
import { holdKeys } from "../common/key_queue.js";
import { holdPanels, showWaiting } from "../common/live_updates.js";
import { PanelError, announceSettled, announceSignedOut, buildUrl, checkAnswer, forgetPanel } from "../common/panel.js";
import { showRequestError } from "../common/ui.js";

const PANELS = ["strip", "pin", "result", "sample"];
const MIN_RETRY = 1000, MAX_RETRY = 10000; // ms. A page that follows tries again by itself.
const page = document.getElementById("step-page");
const result = document.getElementById("result");
const bar = document.querySelector("[data-arrived]");
const follow = document.querySelector("[data-follow]");
let rowsWait = "", showing = false, failures = 0, retry = 0;

const ids = (root) => [...root.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id).join();
const total = (root) => Number(root.querySelector("[data-total]")?.dataset.total ?? 0);
const isFollowing = () => follow?.getAttribute("aria-pressed") === "true";
const isInUse = () =>
  document.activeElement?.matches("input:not([type=range]), textarea, select") ||
  document.querySelector("dialog[open], #flag-box[open], #picked-flags[open], #pin-box[open]");

// The newest step, if the page of the latest step shows an older one.
function findNewerStep() {
  const { last, samples } = document.querySelector("#strip .strip")?.dataset ?? {};
  const isNewer = page.dataset.word === "latest" && last && Number(last) > Number(page.dataset.step);
  return isNewer ? { step: last, samples: Number(samples) } : null;
}

function describe(newer) {
  if (!newer) return rowsWait;
  const count = newer.samples.toLocaleString("en");
  const text = ngettext("step {step} is here ({count} sample)", "step {step} is here ({count} samples)", newer.samples);
  return fill(text, { step: newer.step, count });
}

function update() {
  const text = showing ? "" : describe(findNewerStep());
  const words = bar.querySelector("span");
  if (words.textContent !== text) words.textContent = text;
  if (bar.hidden === Boolean(text)) {
    bar.hidden = !text;
    announceSettled(bar); // the footer names its key
  }
  if (text && isFollowing() && !isInUse() && !retry) show();
}

// --- what waits -------------------------------------------------------------------------------------------------------

// The list changes by itself only if its rows remain the same ones. Marks on rows, such as flags, are always current.
holdPanels((panel, html) => {
  if (panel !== result) return false;
  const fresh = new DOMParser().parseFromString(`<body>${html}`, "text/html");
  rowsWait = "";
  if (ids(fresh) !== ids(result) && isFollowing() && !isInUse()) {
    queueMicrotask(() => document.dispatchEvent(new CustomEvent("deck:followed"))); // after the swap
    return false;
  }
  if (ids(fresh) !== ids(result)) {
    const count = total(fresh) - total(result);
    rowsWait = count > 0 ? fill(gettext("{count} new"), { count: count.toLocaleString("en") }) : gettext("list changed");
    updateMarks(fresh);
  }
  update();
  return rowsWait !== "";
});

function updateMarks(fresh) {
  for (const row of result.querySelectorAll("tr[data-id]")) {
    const now = fresh.getElementById(row.id)?.querySelector(".marks");
    const marks = row.querySelector(".marks");
    if (now && marks && now.innerHTML !== marks.innerHTML) marks.innerHTML = now.innerHTML;
  }
}

document.addEventListener("deck:settled", ({ detail }) => {
  if (detail.panel.id === "result") rowsWait = "";
  if (detail.panel.id === "strip" || detail.panel.id === "result") update();
});

// --- showing it -------------------------------------------------------------------------------------------------------

async function show() {
  if (showing) return;
  showing = true;
  endWait();
  const byUser = !isFollowing();
  const newer = findNewerStep();
  try {
    await holdKeys(newer ? showStep(byUser) : showWaiting(result));
    failures = 0;
    if (isFollowing()) document.dispatchEvent(new CustomEvent("deck:followed"));
  } catch (error) {
    showRequestError(error, gettext("Could not load the new samples. Server unreachable."));
    retry = isRefusal(error) ? -1 : setTimeout(() => (endWait(), update()), Math.min(MAX_RETRY, MIN_RETRY * 2 ** failures++));
  }
  showing = false;
  if (bar.contains(document.activeElement)) document.getElementById("table")?.focus({ preventScroll: true });
  update();
}

// A run that was deleted, for example. It is not tried again by itself.
const isRefusal = (error) => error instanceof PanelError && error.status < 500 && error.status !== 429;

function endWait() {
  clearTimeout(retry);
  retry = 0;
}

const stepUrl = () => buildUrl({ sel: "", start: "", at: "", as: "" });

// The page of the newest step in one response, so that all parts are of the same step.
async function showStep(byUser) {
  const url = stepUrl();
  const response = await fetch(url, { cache: "no-store", credentials: "same-origin" });
  if (response.redirected) announceSignedOut();
  checkAnswer(response);
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const newest = fresh.getElementById("step-page");
  if (!newest) return location.assign(url);
  if (url !== stepUrl()) return showStep(byUser); // the user has run a query meanwhile
  if (byUser) {
    history.replaceState({ htmx: true }, "");
    history.pushState({ htmx: true }, "", url);
  } else history.replaceState(history.state, "", url);
  document.title = fresh.title;
  page.dataset.step = newest.dataset.step;
  document.getElementById("query").dataset.choices = fresh.getElementById("query").dataset.choices;
  for (const selector of ["main > h1", "header .tabs"]) {
    const [old, now] = [document.querySelector(selector), fresh.querySelector(selector)];
    if (old && now) old.innerHTML = now.innerHTML;
  }
  document.dispatchEvent(new CustomEvent("deck:moved", { detail: { id: fresh.querySelector("#sample article")?.dataset.id } }));
  for (const id of PANELS) {
    const panel = document.getElementById(id);
    forgetPanel(panel);
    panel.innerHTML = fresh.getElementById(id).innerHTML; // not morphed: open boxes belong to the old step
    window.htmx.process(panel);
    announceSettled(panel);
  }
  document.getElementById("table").scrollTop = 0;
  document.getElementById("sample").scrollTop = 0;
}

bar.addEventListener("click", show);

// --- follow -----------------------------------------------------------------------------------------------------------

const parameter = (name) => new URLSearchParams(location.search).get(name);
const IGNORED_KEYS = /^(L|Shift|Control|Alt|AltGraph|Meta|CapsLock|F\d+)$/;

function setFollowing(yes) {
  follow.setAttribute("aria-pressed", yes);
  endWait();
  if (yes) update();
}

// A page that nobody has touched follows. Any key, click or scroll means that the user reads.
function stopForReader(event) {
  if (event.target.closest?.("[data-follow]") || IGNORED_KEYS.test(event.key ?? "")) return;
  if (isFollowing()) setFollowing(false);
}

if (follow) {
  follow.hidden = false;
  setFollowing(!parameter("sel") && parameter("follow") !== "0");
  follow.addEventListener("click", () => {
    setFollowing(!isFollowing());
    history.replaceState(history.state, "", buildUrl(isFollowing() ? { follow: "", sel: "" } : { follow: "0" }));
  });
  for (const name of ["keydown", "pointerdown", "wheel", "touchmove"]) {
    addEventListener(name, stopForReader, { capture: true, passive: true });
  }
  document.addEventListener("deck:chosen", () => isFollowing() && setFollowing(false));
}
update();
