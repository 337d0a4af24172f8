// The group board: what a link changes, comes in place. A response is shown whole, or only its end, without closing
// what else is open; as a diff, every response shows what it says differently than the best.
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { address, ask, place, plain } from "../common/panel.js";

const board = document.getElementById("board");
const chosen = () => (new URLSearchParams(location.search).get("whole") ?? "").split(",").filter(Boolean);

function toggled(name) {
  const now = chosen();
  if (name === "all") return now.includes("all") ? "" : "all";
  return (now.includes(name) ? now.filter((one) => one !== name) : [...now, name]).join(",");
}

async function swap(href) {
  history.replaceState(null, "", href);
  try {
    const html = await ask(board, location.href);
    if (html !== null) place(board, html);
  } catch {
    say(gettext("The responses could not be read; the server does not answer."));
  }
}

// What is folded is compared when it opens; where nothing is open, the first responses that are not the best's own.
async function compared() {
  const best = document.getElementById(board.querySelector("[data-best]")?.dataset.best ?? "");
  if (!best) return;
  const folds = [...board.querySelectorAll(":scope > .fold")];
  if (folds.length && !folds.some((fold) => fold.open)) return void ((folds.find((fold) => !fold.contains(best)) ?? folds[0]).open = true);
  const { drawAgainst } = await import("./diff_against.js");
  for (const columns of board.querySelectorAll(":is(.fold[open] > *, #board > *)[data-diff]")) {
    const others = [...columns.querySelectorAll(".board-column:not(:has(pre.cut))")].filter((column) => column !== best);
    await drawAgainst(best, others, columns);
  }
}

if (board) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-whole], #board [data-swap]");
    if (!link || !plain(event)) return;
    event.preventDefault();
    swap(link.dataset.whole ? address({ whole: toggled(link.dataset.whole) }) : link.getAttribute("href"));
  });
  document.addEventListener("deck:flagged", () => swap(location.href));
  document.addEventListener("deck:settled", compared);
  board.addEventListener("toggle", compared, true);
  compared();
}
