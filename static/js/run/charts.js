// The overview: every metric as a small chart. What is chosen stands in the address: m, smooth, log, x, closed, runs.
import { runsOf, short } from "./chart_data.js";
import { Drawing } from "./chart.js";
import { fill, gettext, ngettext } from "../common/i18n.js";
import { address, rested } from "../common/panel.js";

const root = document.querySelector("[data-charts]");
const filter = document.getElementById("metrics");
const smooth = document.getElementById("smooth");
const log = document.getElementById("log");
const counted = document.getElementById("chart-count");
const problem = document.getElementById("metrics-error");
const drawn = new Map();
let layout, etag, reading, again, pattern, held;

// --- state ------------------------------------------------------------------------------------------------------------

const asked = () => new URLSearchParams(location.search);
const write = (changes) => history.replaceState(history.state, "", address(changes));
const closed = () => new Set((asked().get("closed") ?? "").split(",").filter(Boolean));

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

// From the first to the last point of any chart, so that the crosshair means the same in all of them.
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

function palette() {
  root.append(probe);
  const kinds = { flagged: "flagged", pinned: "accent", replayed: "reused", restarted: "partial", failed: "bad" };
  const events = Object.fromEntries(Object.entries(kinds).map(([kind, name]) => [kind, colour(name)]));
  const found = { muted: colour("muted"), hairline: colour("hairline"), events, lines: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => colour(`run-${n}`)) };
  probe.remove();
  return found;
}

// --- what stands on the page --------------------------------------------------------------------------------------------

function section(title, charts, shut) {
  const grid = Object.assign(document.createElement("div"), { className: "chart-grid" });
  grid.append(...charts.map((chart) => {
    const one = new Drawing(chart, page);
    drawn.set(chart.title, one);
    return one.box;
  }));
  const group = Object.assign(document.createElement(title ? "details" : "section"), { className: "chart-group" });
  if (!title) return group.append(grid), group;
  group.open = !shut.has(title);
  group.dataset.group = title;
  group.append(Object.assign(document.createElement("summary"), { textContent: `${title === "other" ? gettext("other") : title} (${charts.length})` }), grid);
  group.addEventListener("toggle", () => {
    const now = closed();
    if (now.has(title) !== group.open) return; // that it was made open is told as well
    now[group.open ? "delete" : "add"](title);
    write({ closed: [...now].join(",") });
    if (group.open) paintAll();
  });
  return group;
}

function constants() {
  const names = Object.entries(layout.constant);
  if (!names.length) return [];
  const box = Object.assign(document.createElement("details"), { className: "constants" });
  const list = document.createElement("dl");
  for (const [name, value] of names) {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: short(value) }));
    list.append(row);
  }
  const said = ngettext("constant: {count} metric", "constant: {count} metrics", names.length);
  box.append(Object.assign(document.createElement("summary"), { className: "muted", textContent: fill(said, { count: names.length }) }), list);
  return [box];
}

function nothing() {
  const box = Object.assign(document.createElement("div"), { className: "empty" });
  box.append(Object.assign(document.createElement("p"), { textContent: gettext("This run has sent no metrics yet.") }));
  const samples = document.querySelector(".strip");
  const more = samples ? gettext("Its samples are one click away in the strip above.") : gettext("Nor any samples. What the trainer's side printed may say why, or “rolloutdeck check”.");
  box.append(Object.assign(document.createElement("p"), { textContent: more }));
  return box;
}

const charts = () => [...layout.default, ...Object.values(layout.groups).flat()];
const shape = (of) => JSON.stringify([of.default, of.groups, Object.keys(of.constant)]);

async function draw(fresh) {
  const same = layout && shape(layout) === shape(fresh);
  layout = fresh;
  held = undefined;
  page.runs = runsOf(layout, root.dataset.run);
  if (root.dataset.show === "table") return table();
  if (!same) lay();
  paintAll();
}

async function table() {
  const { tableOf } = await import("./chart_table.js");
  page.runs[0].name = document.querySelector(".run-chip b").textContent;
  root.replaceChildren(charts().length ? tableOf(charts(), page.runs) : nothing(), ...constants());
  narrow();
}

function lay() {
  for (const one of drawn.values()) one.destroy();
  drawn.clear();
  const shut = closed();
  const groups = Object.entries(layout.groups).map(([title, found]) => section(title || "other", found, shut));
  const first = layout.default.length ? [section("", layout.default, shut)] : [];
  const empty = !first.length && !groups.length && !Object.keys(layout.constant).length;
  root.replaceChildren(...first, ...groups, ...constants(), ...(empty ? [nothing()] : []));
  narrow();
}

// What is in sight first, the others while nothing else is to be done, as many at a time as one frame has room for.
const MOMENT = 8; // ms for making charts; each is drawn after that, in about as long
const waiting = new Set();
let idle;

function paintAll() {
  page.colours ??= palette();
  waiting.clear();
  const seen = [];
  for (const one of drawn.values()) {
    const box = one.box.getBoundingClientRect(); // all are measured before any is drawn
    if (box.width) box.bottom > 0 && box.top < innerHeight ? seen.push([one, one.box.clientWidth - 12]) : waiting.add(one);
  }
  for (const [one, width] of seen) one.paint(width);
  requestAnimationFrame(() => requestAnimationFrame(paintRest)); // once those are on the screen
}

function paintRest() {
  if (waiting.size) idle ??= rested(paintSome, 200);
}

function paintSome() {
  idle = null;
  const until = performance.now() + MOMENT;
  do paint([...waiting].slice(0, 1));
  while (waiting.size && performance.now() < until);
  paintRest();
}

function paint(some) {
  for (const one of some) {
    if (waiting.delete(one) && one.box.isConnected && one.box.clientWidth) one.paint(one.box.clientWidth - 12);
  }
}

// Nobody waits for a chart that they look at.
const wanted = ({ target }) => waiting.size && paint([...waiting].filter((one) => one.box.contains(target)));
root.addEventListener("focusin", wanted);
root.addEventListener("pointerover", wanted);
document.addEventListener("scroll", () => waiting.size && paint([...waiting].filter((one) => one.box.getBoundingClientRect().top < innerHeight)), { capture: true, passive: true });

// --- the filter ---------------------------------------------------------------------------------------------------------

const fits = (names) => !pattern || names.some((name) => pattern.test(name));

function narrow() {
  let count = 0, of = 0;
  for (const one of drawn.values()) {
    one.box.hidden = !fits([...one.chart.names, one.chart.title]);
    count += !one.box.hidden;
    of += 1;
  }
  for (const row of root.querySelectorAll("tr[data-metric]")) {
    row.hidden = !fits([row.dataset.metric]);
    count += !row.hidden;
    of += 1;
  }
  for (const group of root.querySelectorAll(".chart-group")) group.hidden = !group.querySelector(".chart:not([hidden])");
  const left = layout?.left ? ` · ${fill(gettext("{count} metrics more are in the API only"), { count: layout.left })}` : "";
  const said = drawn.size ? gettext("{count} of {all} charts") : gettext("{count} of {all} metrics");
  counted.textContent = of ? fill(said, { count, all: of }) + left : "";
}

// The last pattern that could be read stays, and what is wrong with this one is said.
function filtered() {
  try {
    pattern = filter.value ? new RegExp(filter.value, "i") : null;
    filter.removeAttribute("aria-invalid");
    problem.hidden = true;
  } catch (error) {
    filter.setAttribute("aria-invalid", "true");
    problem.textContent = fill(gettext("This pattern cannot be read: {why}. The last good one still holds."), { why: error.message.split(": ").at(-1) });
    problem.hidden = false;
  }
}

// --- reading ------------------------------------------------------------------------------------------------------------

// One request at a time; a ring meanwhile asks once more. The first is the one that the page's head began.
async function read() {
  if (reading) return void (again = true);
  reading = true;
  again = false;
  try {
    const answer = await fetch(root.dataset.charts, etag ? { cache: "no-store", headers: { "If-None-Match": etag } } : {});
    if (answer.ok) {
      etag = answer.headers.get("ETag");
      await draw(await answer.json());
    }
  } catch {
    // The doorbell shows that the server is away and rings when it is back.
  } finally {
    reading = false;
    if (again) read();
  }
}

function repaint() {
  page.colours = null;
  for (const one of drawn.values()) one.destroy();
  paintAll();
}

let resizing;
new ResizeObserver(() => {
  clearTimeout(resizing);
  resizing = setTimeout(() => drawn.forEach((one) => waiting.has(one) || one.resize()), 80);
}).observe(root);

// --- controls -----------------------------------------------------------------------------------------------------------

filter.value = asked().get("m") ?? "";
filtered();
filter.addEventListener("input", () => {
  write({ m: filter.value });
  filtered();
  narrow();
  paintAll();
});

if (smooth) {
  const told = () => {
    page.weight = Number(smooth.value);
    document.getElementById("smooth-value").textContent = smooth.value;
  };
  smooth.value = asked().get("smooth") ?? "0";
  told();
  smooth.addEventListener("input", () => (told(), paintAll()));
  smooth.addEventListener("change", () => write({ smooth: page.weight || "" }));
}

if (log) {
  const press = (on) => {
    page.log = on;
    log.setAttribute("aria-pressed", on);
  };
  press(asked().get("log") === "1");
  log.addEventListener("click", () => {
    press(!page.log);
    write({ log: page.log ? "1" : "" });
    paintAll();
  });
}

document.addEventListener("deck:ring", read);
document.addEventListener("deck:theme", repaint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
read();
