// The live feed: cards come by themselves while nobody reads them, else they wait behind a bar.
import { fill, gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { address, ask, place, settled } from "../common/panel.js";

const feed = document.querySelector("[data-feed-cards]");
const bar = document.querySelector("[data-feed-new]");
const pause = document.querySelector("[data-feed-pause]");
const main = document.getElementById("main");
let waiting = "", asking = false, again = false;

const cards = (root) => [...root.querySelectorAll("article[id]")];
const paused = () => pause?.getAttribute("aria-pressed") === "true";
// A card that somebody points at, tabs to or has scrolled to must not move away.
const held = () => cards(feed).length > 0 && (paused() || main.scrollTop > 4 || feed.matches(":hover, :focus-within"));

async function look() {
  if (asking) return void (again = true);
  asking = true;
  try {
    const html = await ask(feed, location.href, { quiet: true });
    if (html !== null) take(html);
  } catch {
    // The next ring asks again.
  } finally {
    asking = false;
    if (again) (again = false), look();
  }
}

function take(html) {
  waiting = html;
  if (!held()) return show();
  const next = new DOMParser().parseFromString(html, "text/html");
  for (const card of cards(feed)) {
    const now = next.getElementById(card.id);
    if (now && !card.matches(":focus-within")) window.Idiomorph.morph(card, now.outerHTML, { morphStyle: "outerHTML" });
  }
  count(next);
  settled(feed);
}

function count(next) {
  const known = new Set(cards(feed).map((card) => card.id));
  const fresh = cards(next).filter((card) => !known.has(card.id)).length;
  bar.hidden = !fresh;
  const said = fresh === cards(next).length ? gettext("{count} or more new") : gettext("{count} new");
  bar.querySelector("span").textContent = fill(said, { count: fresh });
}

function show() {
  bar.hidden = true;
  if (waiting) place(feed, waiting);
  waiting = "";
}

function hold(yes) {
  pause.setAttribute("aria-pressed", yes);
  pause.querySelector("span").textContent = yes ? gettext("Paused") : gettext("Pause");
  history.replaceState(null, "", address({ paused: yes ? "1" : "" }));
  if (!yes) show();
}

bar.addEventListener("click", () => {
  show();
  main.scrollTop = 0;
});
pause?.addEventListener("click", () => hold(!paused()));
if (pause && new URLSearchParams(location.search).has("paused")) hold(true);
onEscape(() => paused() && (hold(false), true));
if (!feed.hasAttribute("data-feed-older")) document.addEventListener("deck:ring", look);
