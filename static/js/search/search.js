// The search over all runs: completion of the query, and the button that stops the search.
import { gettext } from "../common/i18n.js";
import { attachCompletion } from "../common/query_completion.js";

const box = document.getElementById("q");
if (box.form.dataset.choices) attachCompletion(box);

document.addEventListener("click", (event) => {
  const stop = event.target.closest?.("[data-stop-search]");
  if (!stop) return;
  const more = stop.closest("#search-more");
  window.htmx.trigger(more, "htmx:abort");
  more.setAttribute("data-stopped", "");
  stop.replaceWith(`· ${gettext("stopped")}`);
});

// A part that was requested before the stop is not added.
document.addEventListener("htmx:beforeRequest", (event) => event.target.hasAttribute("data-stopped") && event.preventDefault());
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.requestConfig?.elt.hasAttribute("data-stopped")) event.detail.shouldSwap = false;
});
document.getElementById("project").addEventListener("change", () => box.value.trim() && box.form.requestSubmit());
