// The script of every page. Pages work without it. It adds shortcuts, live panels and navigation without a page load.
import "./ui.js";
import "./shortcuts.js";
import "./live_updates.js";
import "../findings/findings.js";
import "../pins/pins.js";
import "../palette/open.js";

document.documentElement.classList.add("js");
if (document.getElementById("compare")) import("../compare/compare.js");
if (document.querySelector("[data-charts]")) import("../run/charts.js");
if (document.getElementById("q-choices")) import("../step/query_box.js");
if (document.querySelector("[data-history]")) import("../prompt/prompt.js");
if (document.querySelector("[data-feed-cards]")) import("../live/feed.js");
if (document.getElementById("board")) import("../group/group.js");
if (document.getElementById("flag-here")) import("../flags/inline_flag.js");
if (document.getElementById("sample")) import("../review/viewed.js");
if (document.querySelector("[data-grid]")) import("../run/heatmap_keys.js");
if (document.querySelector("[data-verdict]")) import("../review/review.js");

// Rarely used, so loaded on the first use.
document.addEventListener("click", ({ target }) => {
  const kind = target.closest("[data-link]")?.dataset.link;
  if (kind) import("./copy_link.js").then((links) => links.copyLink(kind));
});
document.querySelector("[data-theme-switch]")?.addEventListener("submit", (event) => {
  event.preventDefault();
  import("./theme.js").then((theme) => theme.switchTheme(event.target.querySelector("button")));
});
