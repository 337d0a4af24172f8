// Brings parts of the sample into view.
const pane = document.getElementById("sample");

// Opens the collapsed parts around `element` and scrolls to it.
export function reveal(element, block = "center") {
  const closed = "details:not([open])";
  for (let box = element.closest(closed); box; box = box.parentElement.closest(closed)) box.open = true;
  element.scrollIntoView({ block });
}

// Scrolls to the next matching element and returns it; null after the last one.
export function revealNext(selector) {
  const all = [...pane.querySelectorAll(selector)];
  const now = all.findIndex((element) => element.classList.contains("reached"));
  const next = all[now + 1] ?? null;
  if (!next) return null;
  all[now]?.classList.remove("reached");
  next.classList.add("reached");
  reveal(next);
  return next;
}
