// The overview: every metric as a small line chart, one crosshair for all, a click opens that step.
const root = document.querySelector("[data-charts]");
const filter = document.getElementById("metrics");
const smooth = document.getElementById("smooth");
const counted = document.getElementById("chart-count");
const sync = window.uPlot.sync("steps");
const HEIGHT = 104;
const drawn = new Map();
let layout, etag, reading, again;

const colour = (name) => {
  const probe = Object.assign(document.createElement("i"), { hidden: true });
  probe.className = "probe";
  probe.style.color = `var(--${name})`;
  root.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

export const short = (value) => {
  if (value == null) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
};

// Ticks that lie closer together than `short` can say get the digits that tell them apart.
const ticked = (ticks) => {
  const labels = ticks.map(short);
  return new Set(labels).size === labels.length ? labels : ticks.map((tick) => String(Number(tick.toPrecision(8))));
};

// --- data -------------------------------------------------------------------------------------------------------------

// Curves of several names and attempts on one axis of steps; a value that a curve lacks is undefined and not joined to 0.
function joined(curves) {
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, at) => [step, at]));
  const series = curves.map((curve) => {
    const values = new Array(steps.length);
    curve.steps.forEach((step, at) => (values[place.get(step)] = curve.values[at]));
    return smoothed(values, Number(smooth.value));
  });
  return [steps, ...series];
}

// Exponential moving average, gaps kept.
function smoothed(values, weight) {
  if (!weight) return values;
  let mean, share = 1;
  return values.map((value) => {
    if (value == null) return value;
    mean = mean === undefined ? value * (1 - weight) : mean * weight + value * (1 - weight);
    share *= weight;
    return mean / (1 - share);
  });
}

const curvesOf = (chart) => chart.names.flatMap((name) => (layout.curves[name] ?? []).map((curve) => ({ ...curve, name })));

// --- one chart --------------------------------------------------------------------------------------------------------

function options(chart, curves, width, colours) {
  const newest = Math.max(...curves.map((curve) => curve.number));
  const all = root.dataset.attempt === "all";
  const axis = { stroke: colours.muted, grid: { stroke: colours.hairline, width: 1 }, ticks: { show: false }, font: "10px Inter Variable, sans-serif" };
  return {
    width, height: HEIGHT, padding: [6, 18, 0, 0],
    cursor: { sync: { key: sync.key }, points: { size: 5 }, drag: { x: false, y: false }, y: false },
    legend: { show: false },
    scales: { x: { time: false }, y: { range: spread } },
    axes: [
      { ...axis, size: 18, gap: 2, space: 46 },
      { ...axis, size: 44, gap: 3, space: 26, values: (_, ticks) => ticked(ticks) },
    ],
    series: [{}, ...curves.map((curve) => ({
      stroke: colours.lines[chart.names.indexOf(curve.name) % 8],
      width: 1.3, spanGaps: true, alpha: all && curve.number < newest ? 0.35 : 1, points: { show: curve.steps.length < 2, size: 4 },
    }))],
    hooks: { setCursor: [(plot) => tell(chart, plot)] },
  };
}

// Room above and below; a span that floating point can hardly tell apart gets a visible one.
function spread(_, low, high) {
  if (low == null) return [0, 1];
  const room = Math.max((high - low) * 0.06, Math.abs(high) * 1e-4, 1e-9);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

// The value under the crosshair, else the last.
function tell(chart, plot) {
  const one = drawn.get(chart.title);
  if (!one) return;
  const at = plot.cursor.idx;
  const [steps, ...series] = plot.data;
  const values = series.map((values) => (at == null ? values.findLast((value) => value != null) : values[at])).filter((value) => value != null);
  one.value.textContent = (at == null ? "" : `${steps[at]}: `) + values.map(short).join(" ");
}

function build(chart) {
  const box = Object.assign(document.createElement("figure"), { className: "chart", title: chart.names.join("\n") });
  const head = document.createElement("header");
  const name = Object.assign(document.createElement("span"), { className: "clip", textContent: chart.title });
  const value = document.createElement("span");
  head.append(name, value);
  box.append(head);
  const one = { chart, box, value, plot: null };
  drawn.set(chart.title, one);
  box.addEventListener("click", () => open(one.plot));
  return one;
}

function open(plot) {
  const at = plot?.cursor.idx;
  if (at != null) location.assign(root.dataset.step.replace("STEP", plot.data[0][at]));
}

function paint(one, width, colours) {
  const curves = curvesOf(one.chart);
  if (!curves.length) return;
  const data = joined(curves);
  if (one.plot && one.plot.series.length === data.length) {
    one.plot.setData(data);
  } else {
    one.plot?.destroy();
    one.plot = new window.uPlot(options(one.chart, curves, width, colours), data, one.box);
  }
  tell(one.chart, one.plot);
}

// --- all charts -------------------------------------------------------------------------------------------------------

function section(title, charts) {
  const group = Object.assign(document.createElement("section"), { className: "chart-group" });
  if (title) group.append(Object.assign(document.createElement("h2"), { textContent: `${title} (${charts.length})` }));
  const grid = Object.assign(document.createElement("div"), { className: "chart-grid" });
  grid.append(...charts.map((chart) => build(chart).box));
  group.append(grid);
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
  box.append(Object.assign(document.createElement("summary"), { className: "muted", textContent: `constant: ${names.length} metric${names.length === 1 ? "" : "s"}` }), list);
  return [box];
}

const shape = (of) => JSON.stringify([of.default, of.groups, Object.keys(of.constant)]);
const palette = () => ({ muted: colour("muted"), hairline: colour("hairline"), lines: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => colour(`run-${n}`)) });

function draw(fresh) {
  const same = layout && shape(layout) === shape(fresh);
  layout = fresh;
  if (!same) lay();
  paintAll();
}

function lay() {
  for (const one of drawn.values()) one.plot?.destroy();
  drawn.clear();
  const groups = Object.entries(layout.groups).map(([title, charts]) => section(title || "other", charts));
  const empty = !layout.default.length && !groups.length && !Object.keys(layout.constant).length;
  root.replaceChildren(...(layout.default.length ? [section("", layout.default)] : []), ...groups, ...constants(), ...(empty ? [nothing()] : []));
  narrow();
}

function nothing() {
  const box = Object.assign(document.createElement("div"), { className: "empty" });
  box.append(Object.assign(document.createElement("p"), { textContent: "This run has sent no metrics yet." }));
  box.append(Object.assign(document.createElement("p"), { textContent: "Its samples, if there are any, are one click away in the strip above." }));
  return box;
}

function paintAll() {
  const colours = palette();
  for (const one of drawn.values()) if (!one.box.hidden) paint(one, one.box.clientWidth - 12, colours);
}

function narrow() {
  let pattern;
  try {
    pattern = new RegExp(filter.value, "i");
    filter.removeAttribute("aria-invalid");
  } catch {
    return filter.setAttribute("aria-invalid", "true");
  }
  let count = 0;
  for (const one of drawn.values()) {
    one.box.hidden = !one.chart.names.some((name) => pattern.test(name)) && !pattern.test(one.chart.title);
    count += !one.box.hidden;
  }
  for (const group of root.querySelectorAll(".chart-group")) group.hidden = !group.querySelector(".chart:not([hidden])");
  counted.textContent = drawn.size ? `${count} of ${drawn.size} charts` : "";
}

// One request at a time; a ring meanwhile asks once more.
async function read() {
  if (reading) return void (again = true);
  reading = true;
  again = false;
  try {
    const answer = await fetch(root.dataset.charts, { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
    if (answer.ok) {
      etag = answer.headers.get("ETag");
      draw(await answer.json());
    }
  } catch {
    // The doorbell shows that the server is away and rings when it is back.
  } finally {
    reading = false;
    if (again) read();
  }
}

function repaint() {
  for (const one of drawn.values()) one.plot = void one.plot?.destroy();
  paintAll();
}

let resizing;
new ResizeObserver(() => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const one of drawn.values()) one.plot?.setSize({ width: one.box.clientWidth - 12, height: HEIGHT });
  }, 80);
}).observe(root);

filter.value = new URLSearchParams(location.search).get("m") ?? "";
filter.addEventListener("input", () => {
  const url = new URL(location);
  if (filter.value) url.searchParams.set("m", filter.value);
  else url.searchParams.delete("m");
  history.replaceState(null, "", url);
  narrow();
  paintAll();
});
smooth.addEventListener("input", paintAll);
document.addEventListener("deck:ring", read);
document.addEventListener("deck:theme", repaint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
read();
