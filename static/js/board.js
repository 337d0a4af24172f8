// The group board: what a link changes, comes in place. A response is shown whole, or only its end, without closing
// what else is open; as a diff, every response shows what it says differently than the best.
import { say } from "./frame.js";
import { address, ask, place, plain } from "./panel.js";

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
    say("The responses could not be read; the server does not answer.");
  }
}

async function compared() {
  const columns = board.querySelector(".board-columns[data-diff]");
  const [best, ...others] = columns ? [...columns.querySelectorAll(".board-column")].reverse() : [];
  if (!best) return;
  const { drawAgainst } = await import("./against.js");
  await drawAgainst(best, others, columns);
}

if (board) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-whole], #board [data-swap]");
    if (!link || !plain(event)) return;
    event.preventDefault();
    swap(link.dataset.whole ? address({ whole: toggled(link.dataset.whole) }) : link.getAttribute("href"));
  });
  document.addEventListener("deck:settled", compared);
  compared();
}
