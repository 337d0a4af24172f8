// The compare page: the responses to one prompt open below its row. d shows the differences from the first one.
import { showRequestError } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { holdKeys } from "../common/key_queue.js";
import { onEscape } from "../common/shortcuts.js";
import { isPlainClick, requestPanel, swapPanel } from "../common/panel.js";

const panel = document.getElementById("compare");
let latest = 0;
const swap = (href) => holdKeys(load(href)); // keys wait: they are for the next prompt

async function load(href) {
  const request = ++latest;
  try {
    const html = await requestPanel(panel, href);
    if (html === null || request !== latest) return;
    const before = chosen();
    history.replaceState(null, "", href);
    swapPanel(panel, html);
    if (chosen() !== before) scrollToPrompt();
  } catch (error) {
    showRequestError(error, gettext("Could not load the texts. Server unreachable."));
  }
}

const chosen = () => panel.querySelector("#pairs > [aria-current]")?.id;

function scrollToPrompt() {
  panel.querySelector("#pairs > [aria-current]")?.scrollIntoView({ block: "start" });
}

// --- differences ------------------------------------------------------------------------------------------------------

async function renderDiffs() {
  const pair = document.getElementById("pair");
  if (!pair?.hasAttribute("data-diff")) return;
  const [first, ...others] = [...pair.querySelectorAll(".board-column")].filter((column) => column.querySelector("pre"));
  const { renderDiffsAgainst } = await import("../group/diff_against.js");
  await renderDiffsAgainst(first, others, pair);
}

if (panel) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#compare [data-swap], #pairs > tr[data-href]");
    const other = event.target.closest("a, button")?.matches(":not([data-swap])");
    if (!link || other || !isPlainClick(event) || String(getSelection())) return;
    event.preventDefault();
    swap(link.getAttribute("href") ?? link.dataset.href);
  });
  document.addEventListener("deck:settled", renderDiffs);
  onEscape(() => {
    const close = document.querySelector('#pair [data-key="Esc"]');
    close?.click();
    return Boolean(close);
  });
  scrollToPrompt();
  renderDiffs();
}
