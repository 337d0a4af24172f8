// Arrow keys in the prompt heatmap.
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

document.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  const cell = event.target.closest?.("[data-grid] th, [data-grid] td");
  if (!move || !cell || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = cell.parentElement;
  const rows = [...row.closest("table").rows];
  const next = rows[rows.indexOf(row) + move[0]]?.cells;
  const link = next?.[cell.cellIndex + move[1]]?.querySelector("a");
  if (!link) return;
  event.preventDefault();
  link.focus();
});
