// The group board: a response is shown whole, or only its end, without closing what else is open.
import { say } from "./frame.js";
import { address, ask, place } from "./panel.js";

const board = document.getElementById("board");
const chosen = () => (new URLSearchParams(location.search).get("whole") ?? "").split(",").filter(Boolean);

function toggled(name) {
  const now = chosen();
  if (name === "all") return now.includes("all") ? "" : "all";
  return (now.includes(name) ? now.filter((one) => one !== name) : [...now, name]).join(",");
}

document.addEventListener("click", async (event) => {
  const link = event.target.closest("[data-whole]");
  if (!board || !link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.replaceState(null, "", address({ whole: toggled(link.dataset.whole) }));
  try {
    const html = await ask(board, location.href);
    if (html !== null) place(board, html);
  } catch {
    say("The responses could not be read; the server does not answer.");
  }
});
