// The context page: search while typing, folded keys, the next difference, and the configuration as text.
import { onChoice } from "../common/choice.js";
import { gettext } from "../common/i18n.js";
import { buildUrl, requestPanel, swapPanel } from "../common/panel.js";
import { copyFrom, showRequestError } from "../common/ui.js";

const SEARCH_DELAY = 150; // ms after the last key
const form = document.getElementById("context-form");
const query = document.getElementById("config-query");
const panel = document.getElementById("config");
let timer = 0;
let running;

async function search() {
  running?.abort();
  running = new AbortController();
  const url = buildUrl({ q: query.value });
  history.replaceState(history.state, "", url);
  try {
    const html = await requestPanel(panel, url, { signal: running.signal });
    if (html !== null) swapPanel(panel, html);
  } catch (error) {
    if (error.name === "AbortError") return;
    showRequestError(error, gettext("Could not search. Server unreachable."));
  }
}

query?.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(search, SEARCH_DELAY);
});
form?.addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  search().then(() => panel.querySelector(".point, [data-fold], a.chip")?.focus());
});
onChoice("#against", ({ value }) => location.assign(buildUrl({ against: value, show: value ? "differs" : "" })));

const findPoints = () => [...panel.querySelectorAll(".point")].filter((row) => row.checkVisibility());

function movePoint(by) {
  const points = findPoints();
  const at = points.indexOf(document.activeElement?.closest(".point"));
  const next = points[at < 0 ? (by > 0 ? 0 : points.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("click", (event) => {
  const fold = event.target.closest("[data-fold]");
  const point = event.target.closest("[data-point]");
  const copy = event.target.closest("[data-copy-url]");
  if (fold) {
    const open = fold.closest(".config-fold").classList.toggle("open");
    fold.setAttribute("aria-expanded", open);
  } else if (point) movePoint(Number(point.dataset.point));
  else if (copy && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    copyFrom(copy.href);
  }
});
