// The run list: the query box, j and k move, x and shift-click select, arrows fold groups. The selection survives each
// refresh; the box of a group selects its runs, also those that are folded.
import { onChoice } from "../common/choice.js";
import { fill, gettext } from "../common/i18n.js";
import { isIgnored } from "../common/keyboard_layout.js";
import { setLive } from "../common/live_updates.js";
import "../common/popover.js";
import { PanelError, buildUrl, requestPanel } from "../common/panel.js";
import { attachCompletion } from "../common/query_completion.js";
import { attachQuery } from "../common/query_runner.js";

const list = document.getElementById("runs");
const bar = document.getElementById("tidy");
const query = document.getElementById("q");
const boxes = () => [...list.querySelectorAll("[data-pick]")];
const names = () => [...list.querySelectorAll(".run-name, .fold")];
const uids = (box) => box.value.split(",");
const picked = new Set();
let anchor;

// --- selection --------------------------------------------------------------------------------------------------------

function showSelection() {
  const all = boxes();
  for (const box of all) {
    const count = uids(box).filter((uid) => picked.has(uid)).length;
    box.checked = count === uids(box).length;
    box.indeterminate = count > 0 && !box.checked;
  }
  bar.classList.toggle("has-some", picked.size > 0);
  bar.querySelector("[data-picked]").textContent = picked.size ? fill(gettext("{count} selected"), { count: picked.size }) : "";
  const selectAll = list.querySelector("[data-pick-all]");
  if (selectAll) selectAll.checked = all.length > 0 && all.every((box) => box.checked);
  if (selectAll) selectAll.indeterminate = picked.size > 0 && !selectAll.checked;
  // Rows must not move while the user selects.
  setLive(list, picked.size === 0);
}

function selectRow(box, on) {
  for (const uid of uids(box)) {
    if (on) picked.add(uid);
    else picked.delete(uid);
  }
}

// After a refresh: runs that still exist remain selected. Runs that are gone are removed from the selection.
function restore() {
  const there = new Set(boxes().flatMap(uids));
  for (const uid of picked) if (!there.has(uid)) picked.delete(uid);
  showSelection();
}

list.addEventListener("click", (event) => {
  const box = event.target.closest("[data-pick], [data-pick-all]");
  if (!box) return;
  const all = boxes();
  if (box.matches("[data-pick-all]")) for (const other of all) selectRow(other, box.checked);
  else {
    const from = event.shiftKey && anchor ? all.findIndex((other) => other.value === anchor) : -1;
    const to = all.indexOf(box);
    const span = from < 0 ? [box] : all.slice(Math.min(from, to), Math.max(from, to) + 1);
    const on = box.checked;
    for (const other of span) selectRow(other, on);
    anchor = box.value;
  }
  showSelection();
});

const rowLink = (row) => row?.querySelector(".run-name, .fold");
const here = () => names().indexOf(rowLink(document.activeElement.closest?.("tr")));

bar.addEventListener("click", (event) => {
  const step = event.target.closest("[data-row]");
  const all = names();
  if (step) all[Math.min(Math.max(here() + Number(step.dataset.row), 0), all.length - 1)]?.focus();
  if (!event.target.closest("[data-row-pick]") || !all.length) return;
  const row = all[Math.max(here(), 0)].closest("tr");
  const box = row.querySelector("[data-pick]");
  selectRow(box, !uids(box).every((uid) => picked.has(uid))); // not `box.checked`: a new box is unchecked until `restore` runs
  anchor = box.value;
  rowLink(row).focus();
  showSelection();
});

// The form returns to the current URL, which contains the current query. It sends each selected run once.
bar.addEventListener("submit", () => (bar.elements.next.value = location.pathname + location.search));
bar.addEventListener("formdata", (event) => {
  event.formData.set("run", [...picked].join(",")); // Django limits the number of fields
});

// Enter in the tag field adds the tag. Without this, Enter would press the first button, which compares.
document.getElementById("tag")?.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || isIgnored(event)) return;
  event.preventDefault();
  bar.requestSubmit(bar.querySelector("[value=tag]"));
});

// --- groups -----------------------------------------------------------------------------------------------------------

// On the name: → unfolds a group, ← folds it, and from a run or a folded group goes to the group around it. Otherwise the
// arrows move inside the row, as in every grid.
list.addEventListener("keydown", (event) => {
  const link = event.target.closest?.(".fold, .run-name");
  if (!link || event.ctrlKey || event.metaKey || event.altKey || !["ArrowRight", "ArrowLeft"].includes(event.key)) return;
  const right = event.key === "ArrowRight", expanded = link.getAttribute("aria-expanded");
  let outer = link.closest("tr");
  const level = Number(outer.dataset.level);
  while (outer && !(outer.matches(".run-group") && Number(outer.dataset.level) < level)) outer = outer.previousElementSibling;
  if (right ? expanded === "false" : expanded === "true") link.click();
  else if (!right && outer) outer.querySelector(".fold").focus();
  else return;
  event.preventDefault();
  event.stopPropagation();
});

// --- query ------------------------------------------------------------------------------------------------------------

const completion = attachCompletion(query);
const form = query.form;
const buildAddress = (q) => buildUrl({ q: q.trim(), name: "", start: "" }); // `name` is the old name of `q`
const { ask } = attachQuery(query, { panel: list, buildAddress });

// Enter goes to the list; after an error the query box has the focus again.
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  completion.close();
  const shown = ask(buildAddress(query.value));
  list.tabIndex = -1;
  list.focus({ preventScroll: true }); // the next keys are for the list
  if ((await shown) && document.activeElement === list) names()[0]?.focus();
});

onChoice("#query select", ({ name, value }) => {
  const url = buildUrl({ [name]: value, start: "" }, buildAddress(query.value));
  if (name === "group") return ask(url);
  location.assign(url); // the actions, the link of the search and the suggestions are others
});

// --- columns ----------------------------------------------------------------------------------------------------------

// The form returns to the list that it was loaded for. It is loaded at each opening, except for the same list with other ticks.
const picker = document.getElementById("picker");
const columns = document.getElementById("columns");
let offered = ""; // the URL of the list
const isTicked = () => [...columns.querySelectorAll("[type=checkbox]")].some((box) => box.checked !== box.defaultChecked);
picker.addEventListener("toggle", async () => {
  const url = buildUrl();
  if (!picker.open || (url === offered && isTicked())) return;
  offered = "";
  showNote(gettext("Loading configs …"));
  try {
    const html = await requestPanel(columns, url);
    if (url !== buildUrl()) return;
    columns.innerHTML = html;
    offered = url;
    columns.querySelector("[autofocus]")?.focus();
  } catch (error) {
    showNote(error instanceof PanelError ? error.message : gettext("Server unreachable."));
  }
});
const showNote = (textContent) =>
  columns.replaceChildren(Object.assign(document.createElement("p"), { className: "muted pad", textContent }));

document.addEventListener("htmx:afterSettle", restore);
document.addEventListener("deck:settled", restore);
addEventListener("pageshow", restore);
restore();
