// The script of every page. Pages work without it. It adds shortcuts, live panels and navigation without a page load.
import { startKeys } from "./common/key_queue.js";
import { MISSING_PART, reportMissingPart } from "./common/ui.js";
import "./common/shortcuts.js";
import "./common/roving.js";
import "./common/choice.js";
import { startLiveUpdates } from "./common/live_updates.js";
import "./findings/findings.js";
import "./pins/pins.js";
import "./palette/open.js";

// In a narrow window the bars of tabs scroll sideways: the chosen tab is shown. The name of the page comes before its tab.
if (matchMedia("(max-width: 860px)").matches) {
  for (const link of document.querySelectorAll(".segmented [aria-current], .brand + .tabs [aria-current]")) {
    const bar = link.closest(".segmented, .top"), own = link.getBoundingClientRect(), box = bar.getBoundingClientRect();
    bar.scrollLeft += (own.left + own.right - box.left - box.right) / 2;
  }
}
const scripts = [];
if (document.getElementById("compare")) scripts.push(import("./compare/compare.js"));
const charts = document.querySelector("[data-charts]");
if (charts) {
  scripts.push(import("./run/charts/index.js").catch((error) => {
    charts.textContent = MISSING_PART;
    throw error;
  }));
}
if (document.getElementById("result")) scripts.push(import("./step/query_box.js")); // a query that filters samples
if (document.querySelector("[data-arrived]")) scripts.push(import("./step/newer_data.js"));
if (document.querySelector("[data-history]")) scripts.push(import("./prompt/prompt.js"));
if (document.querySelector("[data-feed-cards]")) scripts.push(import("./live/feed.js"));
if (document.getElementById("board")) scripts.push(import("./group/group.js"));
if (document.getElementById("flag-here")) scripts.push(import("./flags/inline_flag.js"));
if (document.getElementById("sample")) scripts.push(import("./review/viewed.js"));
if (document.getElementById("agreement")) scripts.push(import("./queues/decide.js"));
if (document.getElementById("queue-review")) scripts.push(import("./queues/review.js"));
if (document.querySelector("[data-decision-url]")) scripts.push(import("./review/review.js"));
if (document.querySelector("[data-import-labels]")) scripts.push(import("./exports/import_labels.js"));
// The scripts that only some pages have run before this event.
scripts.push(new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve)));
// Without its script a key would follow a link instead.
Promise.allSettled(scripts).then((results) => {
  startKeys();
  startLiveUpdates();
  if (results.some(({ status }) => status === "rejected")) reportMissingPart();
});

// Rarely used, so loaded on the first use.
document.addEventListener("click", ({ target }) => {
  const kind = target.closest("[data-link]")?.dataset.link;
  if (kind) import("./common/copy_link.js").then((links) => links.copyLink(kind));
});
document.querySelector("[data-theme-switch]")?.addEventListener("submit", (event) => {
  event.preventDefault();
  import("./common/theme.js").then((theme) => theme.switchTheme(event.target.querySelector("button")));
});

// What the page before could not save is sent from this one.
if (Object.keys(sessionStorage).some((key) => key.startsWith("unsaved "))) import("./common/outbox.js");
