// The search over all runs: completion of the query, and the button that stops the search.
import { onChoice } from "../common/choice.js";
import { gettext } from "../common/i18n.js";
import { buildUrl } from "../common/panel.js";
import { attachCompletion } from "../common/query_completion.js";

const box = document.getElementById("q");
const form = box.form;
const project = document.getElementById("project");
if (form.dataset.choices) attachCompletion(box);

// --- results ----------------------------------------------------------------------------------------------------------

const results = () => [...document.querySelectorAll("#found li a")];

form.addEventListener("click", (event) => {
  const by = Number(event.target.closest("[data-row]")?.dataset.row);
  if (!by) return;
  const all = results();
  all[Math.min(Math.max(all.indexOf(document.activeElement) + by, 0), all.length - 1)]?.focus();
});

// --- stop -------------------------------------------------------------------------------------------------------------

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

project.addEventListener("change", () => (form.dataset.choices = buildUrl({ project: project.value }, form.dataset.choices)));
onChoice("#project", () => box.value.trim() && form.requestSubmit());
