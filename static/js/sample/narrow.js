// On narrow screens an opened sample covers the list like a page of its own: Back closes it, and Tab stays in it.
const page = document.getElementById("step-page");
const pane = document.getElementById("sample");
const narrow = matchMedia("(max-width: 860px)");
const COVERED = ".strip-row, .step-top, .left";
let entered = false; // this page added an entry to the history
let wasOpen = false;

const isOpen = () => narrow.matches && page.classList.contains("reading");

function update() {
  const open = isOpen();
  for (const part of document.querySelectorAll(COVERED)) part.inert = open;
  if (open && !wasOpen) pane.focus({ preventScroll: true });
  if (!open && wasOpen && entered && narrow.matches) history.back(); // it was closed by a key: its entry is left too
  if (!open && wasOpen) document.querySelector("#rows tr[aria-selected] .tail a")?.focus({ preventScroll: true });
  wasOpen = open;
}

// Runs before reader.js opens the sample: the entry before it is the list.
function handleClick(event) {
  if (!narrow.matches) return;
  const row = event.target.closest?.("#rows tr[data-id]");
  if (row && !isOpen() && !event.target.closest("[data-board]")) {
    history.pushState(history.state, "", location.href);
    entered = true;
  }
  if (!event.target.closest?.("[data-close]") || !entered) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  history.back();
}

if (page?.classList.contains("step-page")) {
  document.addEventListener("click", handleClick, true);
  // Back to the list, which is still on the page: htmx would load it again.
  const closeSample = (event) => {
    if (!entered) return;
    event.stopImmediatePropagation();
    entered = false;
    page.classList.remove("reading");
  };
  addEventListener("popstate", closeSample, true);
  document.addEventListener("deck:moved", () => (entered = false)); // the entry before is a sample of another step
  new MutationObserver(update).observe(page, { attributeFilter: ["class"] });
  narrow.addEventListener("change", update);
  update();
}
