// The charts as a table: the last value and the range of each metric of each run.
import { formatShort } from "./format.js";
import { gettext } from "../../common/i18n.js";
import { nameInvisible } from "../../common/invisible.js";

const cell = (tag, text, className = "") => Object.assign(document.createElement(tag), { textContent: text, className });

export function buildTable(charts, runs) {
  const table = Object.assign(document.createElement("table"), { className: "list metric-table" });
  const head = document.createElement("tr");
  const words = [gettext("metric"), ...(runs.length > 1 ? [gettext("run")] : [])];
  const numbers = [gettext("last"), gettext("at step"), gettext("lowest"), gettext("highest")];
  head.append(...words.map((title) => cell("th", title)), ...numbers.map((title) => cell("th", title, "num")));
  const body = document.createElement("tbody");
  const titles = new Map(charts.filter(({ query }) => query).map(({ key, title }) => [key, title]));
  for (const name of new Set(charts.flatMap((chart) => chart.names))) {
    for (const run of runs) body.append(...buildRows(name, titles.get(name) ?? name, run, runs.length > 1));
  }
  const top = document.createElement("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

function buildRows(name, text, run, several) {
  const points = (run.curves[name] ?? []).flatMap((curve) => curve.steps.map((step, at) => [step, curve.values[at]]));
  const known = points.filter(([, value]) => value != null);
  if (!known.length) return [];
  const values = known.map(([, value]) => value);
  const [step, last] = known.at(-1);
  const row = document.createElement("tr");
  row.dataset.metric = text;
  const title = cell("th", nameInvisible(text));
  title.scope = "row";
  const numbers = [last, step, values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const texts = numbers.map((value, at) => (at === 1 ? value.toLocaleString("en") : formatShort(value)));
  const runs = several ? [cell("td", nameInvisible(run.name ?? ""), `c${run.colour}`)] : [];
  row.append(title, ...runs, ...texts.map((text) => cell("td", text, "num")));
  return [row];
}
