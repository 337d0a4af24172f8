// A select in a form with `data-acts-at-once` sends the form when something is chosen. The arrow keys of a closed select also change
// its value; then the form waits for Enter or until the focus leaves, so that one can pass the options in between.
let byKey = false, changed;

const pickerOf = (target) => target.closest?.("form[data-acts-at-once] select");

document.addEventListener("pointerdown", () => (byKey = false), true);
document.addEventListener("keydown", (event) => {
  if (!pickerOf(event.target)) return;
  byKey = event.key !== "Enter";
  if (!byKey) send();
});
document.addEventListener("change", ({ target }) => {
  if (!pickerOf(target)) return;
  changed = target.form;
  if (!byKey) send();
});
document.addEventListener("focusout", send);

function send() {
  const form = changed;
  changed = undefined;
  form?.requestSubmit();
}
