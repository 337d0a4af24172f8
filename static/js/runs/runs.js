// The run list: j and k move, x and shift-click select. The selection survives each refresh.
import { fill, gettext } from "../common/i18n.js";
import "../common/popover.js";

const list = document.getElementById("runs");
const bar = document.getElementById("tidy");
const boxes = () => [...list.querySelectorAll("[data-pick]")];
const names = () => [...list.querySelectorAll(".run-name")];
const picked = new Set();
let anchor;

function showSelection() {
  bar.classList.toggle("has-some", picked.size > 0);
  bar.querySelector("[data-picked]").textContent = picked.size ? fill(gettext("{count} selected"), { count: picked.size }) : "";
  const all = boxes();
  const every = list.querySelector("[data-pick-all]");
  if (every) every.checked = all.length > 0 && all.every((box) => box.checked);
  if (every) every.indeterminate = picked.size > 0 && !every.checked;
  // Rows must not move while the user selects.
  list.toggleAttribute("data-live", picked.size === 0);
}

function selectRow(box, on) {
  box.checked = on;
  if (on) picked.add(box.value);
  else picked.delete(box.value);
}

// After a refresh: rows that still exist remain selected. Rows that are gone are removed from the selection.
function restore() {
  const there = new Set(boxes().map((box) => box.value));
  for (const uid of picked) if (!there.has(uid)) picked.delete(uid);
  for (const box of boxes()) box.checked = picked.has(box.value);
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
    for (const other of span) selectRow(other, box.checked);
    anchor = box.value;
  }
  showSelection();
});

const here = () => names().indexOf(document.activeElement.closest?.("tr")?.querySelector(".run-name"));

bar.addEventListener("click", (event) => {
  const step = event.target.closest("[data-row]");
  const all = names();
  if (step) all[Math.min(Math.max(here() + Number(step.dataset.row), 0), all.length - 1)]?.focus();
  if (!event.target.closest("[data-row-pick]") || !all.length) return;
  const row = all[Math.max(here(), 0)].closest("tr");
  const box = row.querySelector("[data-pick]");
  selectRow(box, !picked.has(box.value)); // not `box.checked`: a new box is unchecked until `restore` runs
  anchor = box.value;
  row.querySelector(".run-name").focus();
  showSelection();
});

// The form returns to the current URL, which contains the current filter.
bar.addEventListener("submit", () => (bar.elements.next.value = location.pathname + location.search));

// Enter in the tag field adds the tag. Without this, Enter would press the first button, which compares.
document.getElementById("tag")?.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  bar.requestSubmit(bar.querySelector("[value=tag]"));
});

document.addEventListener("htmx:afterSettle", restore);
document.addEventListener("deck:settled", restore);
addEventListener("pageshow", restore);
restore();
