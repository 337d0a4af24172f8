// The prompt page: another step or response loads without losing the scroll position. Two responses show a word diff.
import { showRequestError } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { holdKeys } from "../common/key_queue.js";
import { requestPanel, swapPanel } from "../common/panel.js";
import { describeUnlike, renderDiff, renderDifferences } from "../sample/diff_render.js";

const page = document.getElementById("history");
let loading, comparing;
let followed = ""; // the URL of a link whose answer is on its way

async function compare(always = false) {
  comparing?.abort(); // else it may write over this one
  const { signal } = (comparing = new AbortController());
  const into = page.querySelector("[data-diff]");
  const [there, here] = ["second", "selected"].map((name) => page.querySelector(`[data-text="${name}"]`)?.textContent);
  if (!into || there == null || here == null) return;
  const status = page.querySelector("[data-diff-status]");
  status.textContent = gettext("comparing …");
  try {
    const { likeness, parts } = await renderDifferences(there, here, always, signal);
    if (signal.aborted) return;
    if (!parts) return showUnlike(status, likeness);
    renderDiff(into, parts);
    status.textContent = parts.some((part) => part.side !== "both") ? "" : gettext("identical");
    page.classList.add("compared");
  } catch {
    if (signal.aborted) return;
    page.classList.remove("compared");
    status.textContent = gettext("Could not compare the texts in this browser. Showing them side by side.");
  }
}

function showUnlike(status, likeness) {
  page.classList.remove("compared");
  const button = Object.assign(document.createElement("button"), { className: "small", textContent: gettext("word diff anyway") });
  button.type = "button";
  button.addEventListener("click", () => compare(true));
  status.replaceChildren(`${describeUnlike(likeness)} `, button);
}

const load = () => holdKeys(loadHistory()); // keys wait: they are for the new response

// The address of the page changes together with its content.
async function loadHistory() {
  loading?.abort();
  const { signal } = (loading = new AbortController());
  try {
    const html = await requestPanel(page, followed || location.href, { signal });
    if (html === null || signal.aborted) return;
    if (followed) history.pushState(null, "", followed);
    followed = "";
    swapPanel(page, html);
    compare();
  } catch (error) {
    if (signal.aborted) return; // a newer request
    followed = "";
    showRequestError(error, gettext("Could not load the responses. Server unreachable."));
  }
}

page.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  const own = link?.getAttribute("href")?.startsWith("?") && !link.hasAttribute("data-leave");
  if (!own || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  followed = link.href;
  load();
});
addEventListener("popstate", () => ((followed = ""), load()));
document.addEventListener("deck:flagged", load);

compare();
