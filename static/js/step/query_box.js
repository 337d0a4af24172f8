// The query box of samples: runs queries without a page load, also those of charts and filters; menus, brushes.
import { gettext } from "../common/i18n.js";
import { onEscape } from "../common/shortcuts.js";
import { buildUrl } from "../common/panel.js";
import { attachCompletion } from "../common/query_completion.js";
import { attachQuery, getParameter } from "../common/query_runner.js";

const form = document.getElementById("query");
const box = document.getElementById("q");
const MENUS = ".menu[open]";
const KEPT = ["sort", "parts", "top"]; // hidden fields of the form, for a page without scripts
const completion = attachCompletion(box);
const address = (q) => buildUrl({ q, sel: "", start: "" });
const { ask } = attachQuery(box, {
  panel: document.getElementById("result"),
  buildAddress: address,
  onShown: () => (document.getElementById("table").scrollTop = 0),
});

// --- running a query --------------------------------------------------------------------------------------------------

// A link, a chart or a filter.
function go(href) {
  completion.close();
  const url = buildUrl({ sel: "", start: "" }, new URL(href, location.href).href);
  const wanted = new URL(url, location.href).searchParams;
  box.value = wanted.get("q") ?? "";
  for (const name of KEPT) {
    const field = form.querySelector(`[name=${name}]`);
    field.value = wanted.get(name) ?? "";
    field.disabled = !field.value;
  }
  ask(url);
}

const write = (q) => go(buildUrl({ q }));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  completion.close();
  ask(address(box.value));
  document.getElementById("table").focus({ preventScroll: true }); // the next keys are for the list
});

// --- links and menus ----------------------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("#result a[data-ask]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  link.closest(".menu")?.removeAttribute("open");
  go(link.getAttribute("href"));
});

document.addEventListener("click", (event) => {
  const stop = event.target.closest?.("[data-stop]");
  stop?.closest("[data-searching]").setAttribute("data-stopped", "");
  stop?.replaceWith("· " + gettext("stopped"));
  for (const menu of document.querySelectorAll(MENUS)) if (!menu.contains(event.target)) menu.open = false;
});

onEscape(() => {
  const menu = document.querySelector(MENUS);
  if (!menu) return false;
  menu.open = false;
  menu.querySelector("summary").focus();
  return true;
});

// The next part of a search of all steps: ignored if the query has changed since, or the user stopped the search.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { elt, requestConfig, xhr } = event.detail;
  if (elt.id !== "result" || !xhr.responseURL) return;
  const sent = new URL(xhr.responseURL).searchParams;
  const late = ["q", "sort"].some((name) => (sent.get(name) ?? "") !== getParameter(name));
  if (late || requestConfig.elt.hasAttribute("data-stopped")) event.detail.shouldSwap = false;
});

import("./brush.js").then(({ attachBrush }) => {
  attachBrush(write);
  form.toggleAttribute("data-scripted", true);
});
