// The sections of the page: pinned charts, the usual ones, charts of queries, and the others by prefix.
import { Chart } from "./chart.js";
import { makeElement, page, params, root, write } from "./page.js";
import { formatShort } from "./format.js";
import { fill, gettext, ngettext } from "../../common/i18n.js";
import { nameInvisible } from "../../common/invisible.js";

const MANY = 60; // charts; with more, only the first sections are open
const OPEN_SECTIONS = 3;

// [{id, title, note, charts}] in order. A pinned chart is only in the first section.
export function arrangeSections(layout, board, queries) {
  const place = new Map(board.order.map((key, at) => [key, at]));
  const sort = (charts) => charts.toSorted((a, b) => (place.get(a.key) ?? Infinity) - (place.get(b.key) ?? Infinity) || 0);
  const rest = (charts) => sort(charts.filter((chart) => !board.pinned.includes(chart.key)));
  const all = new Map([...listCharts(layout), ...queries].map((chart) => [chart.key, chart]));
  const pinned = board.pinned.map((key) => all.get(key)).filter(Boolean);
  const merged = layout.merged.length
    ? fill(gettext("sections with fewer than 3 charts: {names}"), { names: layout.merged.join(", ") }) : "";
  const sections = [
    { id: "pinned", title: gettext("pinned"), note: gettext("for everybody in the project"), charts: pinned },
    { id: "main", title: gettext("training"), charts: rest(layout.default) },
    { id: "queries", title: gettext("queries"), charts: rest(queries) },
    ...Object.entries(layout.groups).map(([prefix, charts]) => ({
      id: prefix || "other", title: nameInvisible(prefix) || gettext("other"), note: prefix ? "" : merged, charts: rest(charts),
    })),
  ];
  return sections.filter((section) => section.charts.length);
}

export const listCharts = (layout) => [...layout.default, ...Object.values(layout.groups).flat()];

const readSet = (name) => new Set((params().get(name) ?? "").split(",").filter(Boolean));

// Returns the elements, and fills `charts` with a Chart for each key.
export function buildSections(sections, charts, board, onToggle) {
  const many = sections.reduce((sum, section) => sum + section.charts.length, 0) > MANY;
  return sections.map((section, at) => buildSection(section, !(many && at >= OPEN_SECTIONS), charts, board, onToggle));
}

function buildSection({ id, title, note, charts: specs }, open, charts, board, onToggle) {
  const grid = makeElement("div", { className: "chart-grid" }, ...specs.map((spec) => {
    const chart = new Chart(spec, page);
    chart.box.classList.toggle("wide", board.wide.includes(spec.key));
    chart.box.classList.toggle("is-pinned", board.pinned.includes(spec.key));
    charts.set(spec.key, chart);
    return chart.box;
  }));
  const group = makeElement("details", { className: "chart-group" });
  group.open = readSet("closed").has(id) ? false : open || readSet("open").has(id);
  group.dataset.group = id;
  const heading = makeElement("summary", {}, `${title} (${specs.length})`);
  if (note) heading.append(makeElement("span", { className: "section-note", textContent: note }));
  group.append(heading, grid);
  let was = group.open;
  group.addEventListener("toggle", () => {
    if (was === group.open) return; // the toggle event also fires for the initial state
    was = group.open;
    const closed = readSet("closed"), opened = readSet("open");
    if (group.open) closed.delete(id), open || opened.add(id);
    else opened.delete(id), open && closed.add(id);
    write({ closed: [...closed].join(","), open: [...opened].join(",") });
    if (group.open) onToggle();
  });
  return group;
}

export function buildConstants(layout) {
  const names = Object.entries(layout.constant);
  if (!names.length) return [];
  const rows = names.map(([name, value]) =>
    makeElement("div", {}, makeElement("dt", {}, nameInvisible(name)), makeElement("dd", {}, formatShort(value))));
  const heading = fill(ngettext("constant: {count} metric", "constant: {count} metrics", names.length), { count: names.length });
  const summary = makeElement("summary", { className: "muted", textContent: heading });
  return [makeElement("details", { className: "constants" }, summary, makeElement("dl", {}, ...rows))];
}

export function buildEmptyState() {
  const more = document.querySelector(".strip")
    ? gettext("Click a step in the step strip above to see its samples.")
    : gettext("No samples either. Check the trainer's log or run “rolloutdeck check”.");
  const texts = [gettext("No metrics received yet."), more];
  return makeElement("div", { className: "empty" }, ...texts.map((text) => makeElement("p", { textContent: text })));
}

// What the time axis does not show.
export function showAxisNote(layout) {
  const note = document.getElementById("axis-note");
  const names = layout.untimed.join(", ");
  const left = root.dataset.axis === "time" && layout.untimed.length > 0;
  note.hidden = !left;
  if (!left) return;
  note.textContent = layout.axis === "step"
    ? gettext("These metrics have no times, as is usual for imported files. The charts show steps.")
    : fill(ngettext(
      "{count} metric has no times and is not on the time axis: {names}",
      "{count} metrics have no times and are not on the time axis: {names}", layout.untimed.length,
    ), { count: layout.untimed.length, names: names.length > 200 ? `${names.slice(0, 200)} …` : names });
}
