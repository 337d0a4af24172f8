// The run page: each metric as a small chart. The URL contains all choices: m, smooth, log, x, closed, runs.
import { formatShort, listRuns } from "./chart_data.js";
import { Chart } from "./chart.js";
import { fill, gettext, ngettext } from "../common/i18n.js";
import { buildUrl, whenIdle } from "../common/panel.js";

const root = document.querySelector("[data-charts]");
const filter = document.getElementById("metrics");
const smooth = document.getElementById("smooth");
const log = document.getElementById("log");
const counted = document.getElementById("chart-count");
const problem = document.getElementById("metrics-error");
const charts = new Map(); // title -> Chart
let layout, etag, reading, again, pattern, held;

// --- state ------------------------------------------------------------------------------------------------------------

const params = () => new URLSearchParams(location.search);
const write = (changes) => history.replaceState(history.state, "", buildUrl(changes));
const closed = () => new Set((params().get("closed") ?? "").split(",").filter(Boolean));

const page = {
  sync: window.uPlot.sync("steps"),
  axis: root.dataset.axis,
  all: root.dataset.attempt === "all",
  runs: [], weight: 0, log: false, colours: null,
  span: () => (held ??= span()),
  go(line, step) {
    const split = /^(val|eval|samples\/eval)\b/.test(line.name) ? "?split=eval" : "";
    location.assign(root.dataset.step.replace("RUN", encodeURIComponent(line.run.uid)).replace("STEP", step) + split);
  },
};

// From the first to the last point of all charts, so that all have the same x range.
function span() {
  let low = Infinity, high = -Infinity;
  for (const run of page.runs)
    for (const curves of Object.values(run.curves))
      for (const curve of curves) {
        const x = page.axis === "time" ? curve.hours : curve.steps;
        if (x.length) [low, high] = [Math.min(low, x[0]), Math.max(high, x.at(-1))];
      }
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

const probe = Object.assign(document.createElement("i"), { hidden: true });
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function readColours() {
  root.append(probe);
  const kinds = { flagged: "flagged", pinned: "accent", replayed: "reused", restarted: "partial", failed: "bad" };
  const events = Object.fromEntries(Object.entries(kinds).map(([kind, name]) => [kind, colour(name)]));
  const lines = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => colour(`run-${n}`));
  const colours = { muted: colour("muted"), hairline: colour("hairline"), events, lines };
  probe.remove();
  return colours;
}

// --- layout -------------------------------------------------------------------------------------------------------------

function buildSection(title, specs, shut) {
  const grid = Object.assign(document.createElement("div"), { className: "chart-grid" });
  grid.append(...specs.map((spec) => {
    const chart = new Chart(spec, page);
    charts.set(spec.title, chart);
    return chart.box;
  }));
  const group = Object.assign(document.createElement(title ? "details" : "section"), { className: "chart-group" });
  if (!title) return group.append(grid), group;
  group.open = !shut.has(title);
  group.dataset.group = title;
  const heading = `${title === "other" ? gettext("other") : title} (${specs.length})`;
  group.append(Object.assign(document.createElement("summary"), { textContent: heading }), grid);
  group.addEventListener("toggle", () => {
    const now = closed();
    if (now.has(title) !== group.open) return; // the toggle event also fires for the initial state
    now[group.open ? "delete" : "add"](title);
    write({ closed: [...now].join(",") });
    if (group.open) paintAll();
  });
  return group;
}

function buildConstants() {
  const names = Object.entries(layout.constant);
  if (!names.length) return [];
  const box = Object.assign(document.createElement("details"), { className: "constants" });
  const list = document.createElement("dl");
  for (const [name, value] of names) {
    const row = document.createElement("div");
    const term = Object.assign(document.createElement("dt"), { textContent: name });
    row.append(term, Object.assign(document.createElement("dd"), { textContent: formatShort(value) }));
    list.append(row);
  }
  const heading = fill(ngettext("constant: {count} metric", "constant: {count} metrics", names.length), { count: names.length });
  box.append(Object.assign(document.createElement("summary"), { className: "muted", textContent: heading }), list);
  return [box];
}

function buildEmptyState() {
  const box = Object.assign(document.createElement("div"), { className: "empty" });
  box.append(Object.assign(document.createElement("p"), { textContent: gettext("No metrics received yet.") }));
  const samples = document.querySelector(".strip");
  const more = samples
    ? gettext("Click a step in the step strip above to see its samples.")
    : gettext("No samples either. Check the trainer's log or run “rolloutdeck check”.");
  box.append(Object.assign(document.createElement("p"), { textContent: more }));
  return box;
}

const allSpecs = () => [...layout.default, ...Object.values(layout.groups).flat()];
const layoutKey = (layout) => JSON.stringify([layout.default, layout.groups, Object.keys(layout.constant)]);

async function render(fresh) {
  const same = layout && layoutKey(layout) === layoutKey(fresh);
  layout = fresh;
  held = undefined;
  page.runs = listRuns(layout, root.dataset.run);
  if (root.dataset.show === "table") return renderTable();
  if (!same) renderLayout();
  paintAll();
}

async function renderTable() {
  const { buildTable } = await import("./chart_table.js");
  page.runs[0].name = document.querySelector(".run-chip b").textContent;
  root.replaceChildren(allSpecs().length ? buildTable(allSpecs(), page.runs) : buildEmptyState(), ...buildConstants());
  applyFilter();
}

function renderLayout() {
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  const shut = closed();
  const groups = Object.entries(layout.groups).map(([title, specs]) => buildSection(title || "other", specs, shut));
  const first = layout.default.length ? [buildSection("", layout.default, shut)] : [];
  const empty = !first.length && !groups.length && !Object.keys(layout.constant).length;
  root.replaceChildren(...first, ...groups, ...buildConstants(), ...(empty ? [buildEmptyState()] : []));
  applyFilter();
}

// Visible charts are painted first, the others when the page is idle, as many as fit into one frame.
const BUDGET = 8; // ms for creating charts; painting them takes about as long again
const waiting = new Set();
let idle;

function paintAll() {
  page.colours ??= readColours();
  waiting.clear();
  const visible = [];
  for (const chart of charts.values()) {
    const box = chart.box.getBoundingClientRect(); // all charts are measured before the first is painted
    if (!box.width) continue;
    if (box.bottom > 0 && box.top < innerHeight) visible.push([chart, chart.box.clientWidth - 12]);
    else waiting.add(chart);
  }
  for (const [chart, width] of visible) chart.paint(width);
  requestAnimationFrame(() => requestAnimationFrame(paintRest)); // after the visible charts are on the screen
}

function paintRest() {
  if (waiting.size) idle ??= whenIdle(paintSome, 200);
}

function paintSome() {
  idle = null;
  const until = performance.now() + BUDGET;
  do paint([...waiting].slice(0, 1));
  while (waiting.size && performance.now() < until);
  paintRest();
}

function paint(some) {
  for (const chart of some) {
    if (waiting.delete(chart) && chart.box.isConnected && chart.box.clientWidth) chart.paint(chart.box.clientWidth - 12);
  }
}

// Charts that the user points at, focuses or scrolls to are painted at once.
const paintTarget = ({ target }) => waiting.size && paint([...waiting].filter((chart) => chart.box.contains(target)));
const paintVisible = () => paint([...waiting].filter((chart) => chart.box.getBoundingClientRect().top < innerHeight));
root.addEventListener("focusin", paintTarget);
root.addEventListener("pointerover", paintTarget);
document.addEventListener("scroll", () => waiting.size && paintVisible(), { capture: true, passive: true });

// --- the filter ---------------------------------------------------------------------------------------------------------

const matches = (names) => !pattern || names.some((name) => pattern.test(name));

function applyFilter() {
  let count = 0, all = 0;
  for (const { box, chart } of charts.values()) {
    box.hidden = !matches([...chart.names, chart.title]);
    count += !box.hidden;
    all += 1;
  }
  for (const row of root.querySelectorAll("tr[data-metric]")) {
    row.hidden = !matches([row.dataset.metric]);
    count += !row.hidden;
    all += 1;
  }
  for (const group of root.querySelectorAll(".chart-group")) group.hidden = !group.querySelector(".chart:not([hidden])");
  const left = layout?.left ? ` · ${fill(gettext("{count} more metrics are available only in the API"), { count: layout.left })}` : "";
  const text = charts.size ? gettext("{count} of {all} charts") : gettext("{count} of {all} metrics");
  counted.textContent = all ? fill(text, { count, all }) + left : "";
}

// An invalid pattern shows an error; the last valid one remains active.
function readPattern() {
  try {
    pattern = filter.value ? new RegExp(filter.value, "i") : null;
    filter.removeAttribute("aria-invalid");
    problem.hidden = true;
  } catch (error) {
    filter.setAttribute("aria-invalid", "true");
    const why = error.message.split(": ").at(-1);
    problem.textContent = fill(gettext("Invalid pattern: {why}. The previous filter stays active."), { why });
    problem.hidden = false;
  }
}

// --- loading ------------------------------------------------------------------------------------------------------------

// One request at a time; a notification meanwhile causes one more. The page's head preloads the first.
async function load() {
  if (reading) return void (again = true);
  reading = true;
  again = false;
  try {
    const response = await fetch(root.dataset.charts, etag ? { cache: "no-store", headers: { "If-None-Match": etag } } : {});
    if (response.ok) {
      etag = response.headers.get("ETag");
      await render(await response.json());
    }
  } catch {
    // live_updates.js shows that the server is away, and sends a notification when it is back.
  } finally {
    reading = false;
    if (again) load();
  }
}

function repaint() {
  page.colours = null;
  for (const chart of charts.values()) chart.destroy();
  paintAll();
}

let resizing;
new ResizeObserver(() => {
  clearTimeout(resizing);
  resizing = setTimeout(() => charts.forEach((chart) => waiting.has(chart) || chart.resize()), 80);
}).observe(root);

// --- controls -----------------------------------------------------------------------------------------------------------

filter.value = params().get("m") ?? "";
readPattern();
filter.addEventListener("input", () => {
  write({ m: filter.value });
  readPattern();
  applyFilter();
  paintAll();
});

if (smooth) {
  const update = () => {
    page.weight = Number(smooth.value);
    document.getElementById("smooth-value").textContent = smooth.value;
  };
  smooth.value = params().get("smooth") ?? "0";
  update();
  smooth.addEventListener("input", () => (update(), paintAll()));
  smooth.addEventListener("change", () => write({ smooth: page.weight || "" }));
}

if (log) {
  const press = (on) => {
    page.log = on;
    log.setAttribute("aria-pressed", on);
  };
  press(params().get("log") === "1");
  log.addEventListener("click", () => {
    press(!page.log);
    write({ log: page.log ? "1" : "" });
    paintAll();
  });
}

document.addEventListener("deck:changed", load);
document.addEventListener("deck:theme", repaint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
load();
