// Downloads of the large chart: a PNG with title, legend and units, and its points as CSV. Nothing leaves the browser.
import { buildOptions } from "./plot.js";
import { makeElement } from "./page.js";
import { fill, gettext } from "../../common/i18n.js";

const WIDTH = 1200, HEIGHT = 560, HEAD = 64, ROW = 22, MARGIN = 24, SCALE = 2;
const SANS = "Inter Variable, Noto Sans, Noto Sans CJK SC, sans-serif";
// Units that the names of metrics tell.
const UNITS = [
  [/^timing_s\/|_time$|^time\/|(^|\/)seconds?$/, "s"], [/throughput|tokens_per_second/, gettext("tokens/s")],
  [/^samples\/(eval\/)?length/, gettext("characters")], [/(response|prompt)_?len(gth)?\b|completion_length/, gettext("tokens")],
  [/^samples\/(eval\/)?(?!score|length)/, gettext("share")],
];

export const findUnit = (names) => UNITS.find(([pattern]) => names.every((name) => pattern.test(name)))?.[1] ?? "";

export async function downloadPng(chart, plotted, page, { xRange, yRange, note }) {
  const holder = makeElement("div", { className: "offscreen" });
  document.body.append(holder);
  const width = WIDTH - 2 * MARGIN;
  const ranges = { xRange: () => xRange, yRange: () => yRange };
  const options = buildOptions(plotted, page, { width, height: HEIGHT, dense: false, scale: SCALE, ...ranges });
  const plot = new window.uPlot(options, plotted.data, holder);
  await new Promise((done) => setTimeout(done, 50)); // uPlot draws in a microtask; fonts are loaded already
  const legend = layOutLegend(plotted.lines, width);
  const canvas = makeElement("canvas", { width: WIDTH * SCALE, height: (HEAD + legend.height + HEIGHT + 40) * SCALE });
  const ctx = canvas.getContext("2d");
  ctx.scale(SCALE, SCALE);
  ctx.fillStyle = page.colours.paper;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  const write = (text, x, y, font, colour) => {
    Object.assign(ctx, { font, fillStyle: colour });
    ctx.fillText(text, x, y);
  };
  write(chart.title, MARGIN, 32, `600 20px ${SANS}`, page.colours.text);
  write(describe(chart, page, note), MARGIN, 54, `12px ${SANS}`, page.colours.muted);
  for (const { line, x, y } of legend.places) {
    ctx.fillStyle = page.colours.lines[line.colour - 1];
    ctx.fillRect(MARGIN + x, HEAD + y + 7, 14, 4);
    write(line.title, MARGIN + x + 20, HEAD + y + 14, `13px ${SANS}`, page.colours.text);
  }
  ctx.drawImage(plot.ctx.canvas, MARGIN, HEAD + legend.height, width, HEIGHT);
  write(page.axis === "time" ? gettext("hours") : gettext("step"), WIDTH / 2, HEAD + legend.height + HEIGHT + 22, `12px ${SANS}`, page.colours.muted);
  plot.destroy();
  holder.remove();
  canvas.toBlob((blob) => save(blob, `${fileName(chart)}.png`), "image/png");
}

function describe(chart, page, note) {
  const unit = findUnit(chart.names);
  const parts = [
    unit && fill(gettext("unit: {unit}"), { unit }),
    page.weight && fill(gettext("smoothed by {weight}"), { weight: page.weight }), page.log && gettext("logarithmic"), note,
  ];
  return parts.filter(Boolean).join(" · ");
}

function layOutLegend(lines, width) {
  const ctx = document.createElement("canvas").getContext("2d");
  ctx.font = `13px ${SANS}`;
  const places = [];
  let x = 0, y = 0;
  for (const line of lines) {
    const room = ctx.measureText(line.title).width + 44;
    if (x && x + room > width) [x, y] = [0, y + ROW];
    places.push({ line, x, y });
    x += room;
  }
  return { places, height: y + ROW + 8 };
}

// One row for each step in the x range, one column for each line.
export function downloadCsv(chart, plotted, page, [from, to]) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const names = plotted.lines.map((line) => (chart.names.length > 1 ? `${line.run.name} ${line.title}` : line.title));
  const guard = (text) => (/^[=+@\t\r-]/.test(text) ? `'${text}` : text); // a spreadsheet would run it as a formula
  const head = [page.axis === "time" ? "hours" : "step", ...names.map((name) => quote(guard(name)))];
  const rows = plotted.data[0].flatMap((x, at) =>
    x < from || x > to ? [] : [[x, ...plotted.raw.map((values) => values[at] ?? "")].join(",")]);
  save(new Blob([[head.join(","), ...rows, ""].join("\n")], { type: "text/csv" }), `${fileName(chart)}.csv`);
}

const fileName = (chart) => chart.title.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80) || "chart";

function save(blob, name) {
  const link = makeElement("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
