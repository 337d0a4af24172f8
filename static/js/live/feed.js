// The live feed: new cards appear at once, or wait behind a button while the user reads.
import { fill, gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { announceSettled, buildUrl, requestPanel, swapPanel } from "../common/panel.js";

const feed = document.querySelector("[data-feed-cards]");
const bar = document.querySelector("[data-feed-new]");
const pause = document.querySelector("[data-feed-pause]");
const main = document.getElementById("main");
const TIMEOUT = 30000; // ms
let waiting = "", loading = false, again = false;

const cards = (root) => [...root.querySelectorAll("article[id]")];
const paused = () => pause?.getAttribute("aria-pressed") === "true";
// A card that the user points at, focuses or has scrolled to must not move.
const isInUse = () => cards(feed).length > 0 && (paused() || main.scrollTop > 4 || feed.matches(":hover, :focus-within"));

async function refresh() {
  if (loading) return void (again = true);
  loading = true;
  try {
    const html = await requestPanel(feed, location.href, { signal: AbortSignal.timeout(TIMEOUT), quiet: true });
    if (html !== null) receive(html);
  } catch {
    // The next notification requests it again.
  } finally {
    loading = false;
    if (again) (again = false), refresh();
  }
}

function receive(html) {
  waiting = html;
  if (!isInUse()) return show();
  const next = new DOMParser().parseFromString(html, "text/html");
  for (const card of cards(feed)) {
    const now = next.getElementById(card.id);
    if (now && !card.matches(":focus-within")) window.Idiomorph.morph(card, now.outerHTML, { morphStyle: "outerHTML" });
  }
  countNew(next);
  announceSettled(feed);
}

function countNew(next) {
  const known = new Set(cards(feed).map((card) => card.id));
  const fresh = cards(next).filter((card) => !known.has(card.id)).length;
  bar.hidden = !fresh;
  const text = fresh === cards(next).length ? gettext("{count}+ new") : gettext("{count} new");
  bar.querySelector("span").textContent = fill(text, { count: fresh });
}

function show() {
  bar.hidden = true;
  if (waiting) swapPanel(feed, waiting);
  waiting = "";
}

function setPaused(yes) {
  pause.setAttribute("aria-pressed", yes);
  pause.querySelector("span").textContent = yes ? gettext("Paused") : gettext("Pause");
  history.replaceState(null, "", buildUrl({ paused: yes ? "1" : "" }));
  if (!yes) show();
}

bar.addEventListener("click", () => {
  show();
  main.scrollTop = 0;
});
pause?.addEventListener("click", () => setPaused(!paused()));
if (pause && new URLSearchParams(location.search).has("paused")) setPaused(true);
onEscape(() => paused() && (setPaused(false), true));
if (!feed.hasAttribute("data-feed-older")) document.addEventListener("deck:changed", refresh);
