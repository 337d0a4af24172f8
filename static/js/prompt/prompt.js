// The prompt page: another step or response loads without losing the scroll position. Two responses show a word diff.
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { requestPanel, swapPanel } from "../common/panel.js";
import { differences, renderDiff } from "../sample/diff_render.js";

const page = document.getElementById("history");
let loading;

async function compare() {
  const into = page.querySelector("[data-diff]");
  const [there, here] = ["second", "selected"].map((name) => page.querySelector(`[data-text="${name}"]`)?.textContent);
  if (!into || there == null || here == null) return;
  const status = page.querySelector("[data-diff-said]");
  status.textContent = gettext("comparing …");
  try {
    const parts = await differences(there, here);
    renderDiff(into, parts);
    status.textContent = parts.some((part) => part.side !== "both") ? "" : gettext("identical");
    page.classList.add("compared");
  } catch {
    page.classList.remove("compared");
    status.textContent = gettext("Could not compare the texts in this browser. Showing them side by side.");
  }
}

async function load() {
  loading?.abort();
  loading = new AbortController();
  try {
    const html = await requestPanel(page, location.href, { signal: loading.signal });
    if (html === null) return;
    swapPanel(page, html);
    compare();
  } catch (error) {
    if (error.name !== "AbortError") showMessage(gettext("Could not load the responses. Server unreachable."));
  }
}

page.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  const own = link?.getAttribute("href")?.startsWith("?") && !link.hasAttribute("data-leave");
  if (!own || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, "", link.getAttribute("href"));
  load();
});
addEventListener("popstate", load);
document.addEventListener("deck:flagged", load);

compare();
