// Comparing: one prompt's answers open below its row, by keys; d shows what each says differently than the first.
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { ask, place, plain } from "../common/panel.js";

const panel = document.getElementById("compare");
let wanted = 0;


async function swap(href) {
  const turn = ++wanted;
  try {
    const html = await ask(panel, href);
    if (html === null || turn !== wanted) return;
    const before = chosen();
    history.replaceState(null, "", href);
    place(panel, html);
    if (chosen() !== before) inSight();
  } catch {
    say(gettext("The texts could not be read; the server does not answer."));
  }
}

const chosen = () => panel.querySelector("#pairs > [aria-current]")?.id;

function inSight() {
  panel.querySelector("#pairs > [aria-current]")?.scrollIntoView({ block: "start" });
}

// --- what differs -----------------------------------------------------------------------------------------------------

async function compared() {
  const pair = document.getElementById("pair");
  if (!pair?.hasAttribute("data-diff")) return;
  const [first, ...others] = [...pair.querySelectorAll(".board-column")].filter((column) => column.querySelector("pre"));
  const { drawAgainst } = await import("../group/diff_against.js");
  await drawAgainst(first, others, pair);
}

if (panel) {
  document.addEventListener("click", (event) => {
    const found = event.target.closest("#compare [data-swap], #pairs > tr[data-href]");
    const other = event.target.closest("a, button")?.matches(":not([data-swap])");
    if (!found || other || !plain(event) || String(getSelection())) return;
    event.preventDefault();
    swap(found.getAttribute("href") ?? found.dataset.href);
  });
  document.addEventListener("deck:settled", compared);
  onEscape(() => {
    const close = document.querySelector('#pair [data-key="Esc"]');
    close?.click();
    return Boolean(close);
  });
  inSight();
  compared();
}
