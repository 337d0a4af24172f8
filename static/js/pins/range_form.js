// The form of a range of steps: its first field has the focus when it opens, Esc closes it.
import { setLive } from "../common/live_updates.js";
import { onEscape } from "../common/shortcuts.js";

const range = document.getElementById("add-steps");
const panels = document.querySelectorAll("[data-live]");

function focusFirstField() {
  if (range?.open) range.querySelector("select").focus();
}

range?.addEventListener("toggle", focusFirstField);
focusFirstField(); // its key may be pressed, or the URL may open it, before this script is there
onEscape(() => {
  if (!range?.open) return false;
  range.open = false;
  range.querySelector("summary").focus();
  return true;
});

// The answer is a new page: until it comes, the panels must not ask for what each new pin changes. It does not come if the
// person stops the request.
range?.querySelector("form").addEventListener("submit", () => panels.forEach((panel) => setLive(panel, false)));
range?.addEventListener("toggle", () => range.open || panels.forEach((panel) => setLive(panel, true)));
addEventListener("pageshow", ({ persisted }) => persisted && panels.forEach((panel) => setLive(panel, true)));
