// A key presses the element with the same data-key. Which keys there are stands in one table on the server.

const TYPING = "input:not([type=range], [type=checkbox], [type=radio]), textarea, select, [contenteditable]";
const steps = [];

// Esc undoes the innermost thing that is open: each asks in turn, the first that says true has done it.
export const onEscape = (step) => steps.push(step);

function press(key) {
  const found = [...document.querySelectorAll(`[data-key="${CSS.escape(key)}"]`)].find((one) => one.offsetParent && !one.disabled);
  if (!found) return false;
  if (found.matches(TYPING)) {
    found.focus();
    found.select?.();
  } else found.click();
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.(TYPING);
  if (event.key === "Escape") {
    if (steps.some((step) => step())) event.preventDefault();
    else if (typing) event.target.blur();
    else press("Esc");
    return;
  }
  if (typing) return;
  if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
  if (press(event.key)) event.preventDefault();
});
