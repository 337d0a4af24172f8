// The group view: links update it without a page load. A response is shown in full or only its end. In the diff view each
// response shows its differences from the best one.
import { showRequestError } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { holdKeys } from "../common/key_queue.js";
import { buildUrl, isPlainClick, requestPanel, swapPanel } from "../common/panel.js";

const board = document.getElementById("board");
let latest = 0;
let requested = ""; // the URL of the responses that are on their way
const address = () => requested || location.href;
const chosen = () => (new URL(address()).searchParams.get("whole") ?? "").split(",").filter(Boolean);

function toggled(name) {
  const now = chosen();
  if (name === "all") return now.includes("all") ? "" : "all";
  return (now.includes(name) ? now.filter((other) => other !== name) : [...now, name]).join(",");
}

// Keys wait: they are for the new responses.
const swap = (href) => holdKeys(load(new URL(href, location.href).href));

// The address of the page changes together with its responses.
async function load(url) {
  const request = ++latest;
  requested = url;
  try {
    const html = await requestPanel(board, url);
    if (html === null || request !== latest) return;
    history.replaceState(null, "", url);
    swapPanel(board, html);
  } catch (error) {
    showRequestError(error, gettext("Could not load the responses. Server unreachable."));
  } finally {
    if (request === latest) requested = "";
  }
}

// The response that the others are compared with; none if the view shows no diffs.
const findBest = () => document.getElementById(board.querySelector("[data-best]")?.dataset.best ?? "");

// A collapsed set of responses is compared when it opens. If none is open, the first one without the best response opens.
async function renderDiffs() {
  if (!findBest()) return;
  const folds = [...board.querySelectorAll(":scope > .fold")];
  if (folds.length && !folds.some((fold) => fold.open)) {
    (folds.find((fold) => !fold.contains(findBest())) ?? folds[0]).open = true;
    return;
  }
  const { renderDiffsAgainst } = await import("./diff_against.js");
  for (const columns of board.querySelectorAll(":is(.fold[open] > *, #board > *)[data-diff]")) {
    const best = findBest(); // the board may have been updated during the diffs before
    const others = [...columns.querySelectorAll(".board-column:not(:has(pre.cut))")].filter((column) => column !== best);
    await renderDiffsAgainst(best, others, columns);
  }
}

if (board) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-expand], #board [data-swap]");
    if (!link || !isPlainClick(event)) return;
    event.preventDefault();
    swap(link.dataset.expand ? buildUrl({ whole: toggled(link.dataset.expand) }, address()) : link.getAttribute("href"));
  });
  document.addEventListener("deck:flagged", () => swap(address()));
  document.addEventListener("deck:settled", renderDiffs);
  board.addEventListener("toggle", renderDiffs, true);
  renderDiffs();
}
