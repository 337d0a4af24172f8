// The overview's links keep what the script has written into the address meanwhile; the map of prompts by arrow keys.
import { say } from "./frame.js";
import { gettext } from "./i18n.js";
import { address, ask, settled } from "./panel.js";

document.getElementById("over")?.addEventListener("toggle", async (event) => {
  const list = document.getElementById("overlay");
  if (!event.target.open || list.dataset.read) return;
  list.dataset.read = "true";
  try {
    const [html] = await Promise.all([ask(list, location.href), import("./popover.js")]); // what makes its field work comes with it
    list.innerHTML = html ?? "";
    settled(list);
  } catch {
    delete list.dataset.read;
    say(gettext("The runs could not be read; the server does not answer."));
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-set]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const told = Object.fromEntries(link.dataset.set.split("&").map((pair) => [pair.split("=")[0], decodeURIComponent(pair.slice(pair.indexOf("=") + 1))]));
  location.assign(address(told));
});

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

document.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  const cell = event.target.closest?.("[data-grid] th, [data-grid] td");
  if (!move || !cell || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = cell.parentElement;
  const rows = [...row.closest("table").rows];
  const next = rows[rows.indexOf(row) + move[0]]?.cells;
  const link = next?.[cell.cellIndex + move[1]]?.querySelector("a");
  if (!link) return;
  event.preventDefault();
  link.focus();
});
