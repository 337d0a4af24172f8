// The charts of the run page. The URL contains all choices: m, smooth, log, x, closed, open, runs, one, chart, zoom, y.
import { addKey, Board, enableDragging, mayArrange, removeKey } from "./board.js";
import { listRuns } from "./data.js";
import { makeElement, page, params, root, write } from "./page.js";
import { paintAll } from "./painting.js";
import { askedTexts, attachCurves, countSteps, forgetCounts, isQueryKey, listQueryCharts, openForm, writeAsked } from "./query_charts.js";
import { arrangeSections, buildConstants, buildEmptyState, buildSections, listCharts, showAxisNote } from "./sections.js";
import { fill, gettext } from "../../common/i18n.js";

const filter = document.getElementById("metrics");
const smooth = document.getElementById("smooth");
const log = document.getElementById("log");
const counted = document.getElementById("chart-count");
const problem = document.getElementById("metrics-error");
const charts = new Map(); // key -> Chart
const board = new Board(() => renderLayout());
const TIMEOUT = 30000; // ms
let layout, etag, reading, again, pattern, large;

// --- layout -------------------------------------------------------------------------------------------------------------

const layoutKey = (layout) => JSON.stringify([layout.default, layout.groups, Object.keys(layout.constant)]);

async function render(fresh) {
  const same = layout && layoutKey(layout) === layoutKey(fresh) && !board.read(fresh.board);
  board.read(fresh.board);
  layout = fresh;
  forgetCounts();
  page.axis = layout.axis;
  page.forgetSpan();
  page.runs = listRuns(layout, root.dataset.run);
  attachCurves(page.runs, listQueryCharts(board));
  showAxisNote(layout);
  if (root.dataset.show === "table") return renderTable();
  if (same) repaint();
  else renderLayout();
  if (large) large.update();
  else if (params().get("chart")) await openLarge(params().get("chart"));
}

async function renderTable() {
  const { buildTable } = await import("./table.js");
  const queries = listQueryCharts(board);
  const specs = [...listCharts(layout), ...queries];
  const draw = () => {
    const parts = [specs.length ? buildTable(specs, page.runs) : buildEmptyState(), ...buildConstants(layout)];
    const fresh = makeElement("div", {}, ...parts);
    fresh.querySelector(".constants")?.toggleAttribute("open", root.querySelector(".constants")?.open ?? false);
    window.Idiomorph.morph(root, fresh.innerHTML, { morphStyle: "innerHTML" }); // keeps the focus and a selection
    applyFilter();
  };
  draw();
  for (const spec of queries) countSteps({ box: root, showNote() {} }, spec, page.runs, draw);
}

function renderLayout() {
  const focused = document.activeElement?.dataset?.chart;
  const queries = listQueryCharts(board);
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  const sections = buildSections(arrangeSections(layout, board, queries), charts, board, repaint);
  const empty = !sections.length && !Object.keys(layout.constant).length;
  root.replaceChildren(...sections, ...buildConstants(layout), ...(empty ? [buildEmptyState()] : []));
  applyFilter();
  repaint();
  charts.get(focused)?.box.focus();
  large?.update();
}

const repaint = () => paintAll(charts.values());

// --- the large view -----------------------------------------------------------------------------------------------------

// The charts in the order of the page, without those that the filter hides.
const visibleKeys = () => [...charts.values()].filter(({ box }) => !box.hidden).map(({ chart }) => chart.key);

async function openLarge(key) {
  const { LargeChart } = await import("./large_chart.js");
  if (!charts.has(key)) return;
  large ??= new LargeChart(document.getElementById("large"), page, {
    find: (wanted) => charts.get(wanted), keys: visibleKeys, onClose: closeLarge, board, onRemove: removeQuery,
  });
  root.hidden = document.getElementById("chart-keys").hidden = true;
  large.open(key);
}

function closeLarge(key) {
  large = null;
  root.hidden = document.getElementById("chart-keys").hidden = false;
  repaint();
  charts.get(key)?.box.focus();
}

page.enlarge = openLarge;
page.drawRun = (uid) => {
  page.one = uid === page.runs[0].uid ? "" : uid;
  write({ one: page.one });
  repaint();
  large?.update();
};

// --- charts of queries ---------------------------------------------------------------------------------------------------

page.count = (chart) => {
  if (chart.counting === page.runs) return;
  chart.counting = page.runs;
  const isLarge = () => large?.shows(chart.chart.key);
  const showNote = (text) => {
    chart.showNote(text);
    if (isLarge()) large.showOutside();
  };
  countSteps({ box: chart.box, showNote }, chart.chart, page.runs, () => (isLarge() ? large.update() : repaintOne(chart)));
};

function repaintOne(chart) {
  if (chart.box.isConnected && chart.box.clientWidth) chart.paint(chart.box.clientWidth - 12);
}

document.getElementById("add-chart-open")?.addEventListener("click", () => openForm(root.dataset.run, (text) => {
  writeAsked([...new Set([...askedTexts(), text])]);
  renderLayout();
  charts.get(`query:${text}`)?.box.focus();
}));

// From the URL, or for everybody from the project.
function removeQuery(key) {
  const text = key.replace("query:", "");
  writeAsked(removeKey(askedTexts(), text));
  if (board.queries.includes(text)) {
    board.change(({ queries, pinned }) => ({ queries: removeKey(queries, text), pinned: removeKey(pinned, key) }));
  } else renderLayout();
}

// --- arranging ----------------------------------------------------------------------------------------------------------

const sectionKeys = (key) => {
  const boxes = charts.get(key)?.box.parentElement.querySelectorAll("figure.chart") ?? [];
  return [...boxes].map((box) => box.dataset.chart);
};

const ARRANGE = {
  pin(key) {
    const text = key.replace("query:", "");
    if (isQueryKey(key) && !board.queries.includes(text)) { // a chart of the URL becomes one of the project
      return board.change(({ queries, pinned }) => ({ queries: addKey(queries, text), pinned: addKey(pinned, key) }))
        .then((isSaved) => isSaved && writeAsked(removeKey(askedTexts(), text)));
    }
    board.toggle("pinned", key);
  },
  wide: (key) => board.toggle("wide", key),
  earlier: (key) => shift(key, -1),
  later: (key) => shift(key, 1),
};

function shift(key, by) {
  const keys = sectionKeys(key), target = keys[keys.indexOf(key) + by];
  if (target) board.place(key, target, by > 0, keys);
}

for (const button of document.querySelectorAll("[data-arrange]"))
  button.addEventListener("click", () => {
    const box = document.activeElement?.closest("figure[data-chart]") ?? root.querySelector("figure.chart:hover");
    const key = large?.chart.key ?? box?.dataset.chart;
    if (key && mayArrange) ARRANGE[button.dataset.arrange](key);
  });
enableDragging(board, sectionKeys);

// --- moving between charts ----------------------------------------------------------------------------------------------

// The charts are one tab stop (common/roving.js).
function moveChart(by) {
  const boxes = [...root.querySelectorAll("figure.chart")].filter((box) => box.checkVisibility());
  const at = boxes.indexOf(document.activeElement);
  boxes[at < 0 ? (by > 0 ? 0 : boxes.length - 1) : Math.min(Math.max(at + by, 0), boxes.length - 1)]?.focus();
}

for (const button of document.querySelectorAll("[data-chart-move]"))
  button.addEventListener("click", () => moveChart(Number(button.dataset.chartMove)));

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
  const shown = all ? fill(text, { count, all }) + left : "";
  if (counted.textContent !== shown) counted.textContent = shown; // a screen reader reads it
}

// An invalid pattern shows an error; the last valid one remains active.
function readPattern() {
  try {
    pattern = filter.value ? new RegExp(filter.value, "i") : null;
    filter.removeAttribute("aria-invalid");
    problem.hidden = true;
  } catch (error) {
    filter.setAttribute("aria-invalid", "true");
    const reason = error.message.split(": ").at(-1);
    problem.textContent = fill(gettext("Invalid pattern: {error}. The previous filter stays active."), { error: reason });
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
    const options = etag ? { cache: "no-store", headers: { "If-None-Match": etag } } : {};
    const response = await fetch(root.dataset.charts, { ...options, signal: AbortSignal.timeout(TIMEOUT) });
    if (response.ok) {
      await render(await response.json());
      etag = response.headers.get("ETag"); // not before: the body may break off
    } else if (response.status !== 304 && !layout) showLoadError(fill(gettext("The server returned status {status}."), response));
  } catch {
    // live_updates.js shows that the server is away, and sends a notification when it is back.
    if (!layout) showLoadError(gettext("Server unreachable."));
  } finally {
    reading = false;
    if (again) load();
  }
}

function showLoadError(reason) {
  const text = `${gettext("Could not load the metrics.")} ${reason} ${gettext("Reload the page to try again.")}`;
  root.replaceChildren(makeElement("p", { className: "empty error-line", role: "alert", textContent: text }));
}

function recolour() {
  page.colours = null;
  for (const chart of charts.values()) chart.destroy();
  repaint();
  large?.update();
}

// --- controls -----------------------------------------------------------------------------------------------------------

const redraw = () => {
  if (large) large.update();
  else repaint();
};

filter.value = params().get("m") ?? "";
readPattern();
filter.addEventListener("input", () => {
  write({ m: filter.value });
  readPattern();
  applyFilter();
  redraw();
});

if (smooth) {
  const update = () => {
    page.weight = Number(smooth.value);
    document.getElementById("smooth-value").textContent = smooth.value;
  };
  smooth.value = params().get("smooth") ?? "0";
  update();
  smooth.addEventListener("input", () => (update(), redraw()));
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
    redraw();
  });
}

document.addEventListener("deck:changed", load);
document.addEventListener("deck:theme", recolour);
// A page in dark colours is printed in light ones.
for (const media of ["(prefers-color-scheme: dark)", "(forced-colors: active)", "print"]) {
  matchMedia(media).addEventListener("change", recolour);
}
load();
