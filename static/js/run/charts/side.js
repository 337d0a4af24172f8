// At the right of the large chart: all lines at one step, and the events in view.
import { findLast, findNearest } from "./data.js";
import { readEvents } from "./events.js";
import { formatHours, formatShort } from "./format.js";
import { makeElement } from "./page.js";
import { fill, gettext } from "../../common/i18n.js";

const SIGNS = { failed: "✕", restarted: "↻", flagged: "⚑", pinned: "◆", replayed: "▬" };
const MAX_EVENTS = 12;

// Rows of [name, at the step, last, lowest, highest] for the lines, of their points in the x range.
export function listRows(plotted, at, [from, to]) {
  const axis = plotted.data[0];
  return plotted.lines.map((line, n) => {
    const inside = plotted.raw[n].filter((_, i) => axis[i] >= from && axis[i] <= to);
    const values = inside.filter((value) => value != null);
    const edge = (choose, own) => (own?.length ? own : values).reduce((a, b) => choose(a, b), choose === Math.min ? Infinity : -Infinity);
    return {
      line, value: at == null ? null : plotted.raw[n][at], last: findLast(inside),
      low: values.length ? edge(Math.min) : null, high: values.length ? edge(Math.max) : null,
    };
  });
}

export function buildSide(page, plotted, at, xRange) {
  const step = findStep(page, plotted, at);
  const steps = (x) => (page.axis === "step" ? fill(gettext("step {step}"), { step: x.toLocaleString("en") }) : formatHours(x));
  const here = at == null ? gettext("last values") : steps(plotted.data[0][at]);
  const head = makeElement("header", { className: "row" }, makeElement("b", { textContent: here }));
  const line = plotted.lines[0];
  if (line && step != null) {
    const link = makeElement("a", { className: "button small push", href: page.stepUrl(line, step), textContent: gettext("Open samples") });
    link.dataset.key = "s";
    link.append(" ", makeElement("kbd", { textContent: "s" }));
    head.append(link);
  }
  const words = [gettext("line"), ...(at == null ? [] : [gettext("here")]), gettext("last"), gettext("min – max")];
  const heads = words.map((word, n) => makeElement("th", { textContent: word, className: n ? "num" : "", scope: "col" }));
  const top = makeElement("tr", {}, ...heads);
  const body = listRows(plotted, at, xRange).map((row) => buildRow(row, at != null));
  const table = makeElement("table", { className: "list" }, makeElement("thead", {}, top), makeElement("tbody", {}, ...body));
  return [head, table, ...buildEvents(page, plotted, xRange)];
}

function buildRow({ line, value, last, low, high }, here) {
  const name = makeElement("th", { scope: "row" }, makeElement("i", { className: `swatch c${line.colour}` }), line.title);
  const range = low == null ? "–" : `${formatShort(low)} – ${formatShort(high)}`;
  const texts = [...(here ? [formatShort(value)] : []), formatShort(last), range];
  return makeElement("tr", {}, name, ...texts.map((text) => makeElement("td", { textContent: text, className: "num" })));
}

// The step of the first line that is nearest to the cursor, or its last one.
export function findStep(page, plotted, at) {
  const line = plotted.lines[0];
  if (!line?.steps.length) return null;
  return at == null ? line.steps.at(-1) : line.steps[findNearest(line, plotted.data[0][at])];
}

function buildEvents(page, plotted, [from, to]) {
  if (page.axis !== "step") return [];
  const events = readEvents().filter(([, step]) => step >= from && step <= to);
  if (!events.length) return [];
  const names = {
    failed: gettext("failed"), restarted: gettext("restarted"), flagged: gettext("flagged"), pinned: gettext("pinned"),
    replayed: gettext("replayed"),
  };
  const rows = events.slice(-MAX_EVENTS).map(([kind, step]) => {
    const link = makeElement("a", { href: page.stepUrl(null, step), textContent: fill(gettext("step {step}"), { step }) });
    const sign = makeElement("span", { className: `event ${kind}`, textContent: SIGNS[kind], ariaHidden: "true" });
    return makeElement("li", {}, sign, " ", link, `: ${names[kind]}`);
  });
  return [makeElement("h3", { textContent: gettext("events in view") }), makeElement("ul", {}, ...rows)];
}
