// Brings parts of the sample into view.
const pane = document.getElementById("sample");

// Opens what folds over `element` and brings it into sight.
export function reveal(element, block = "center") {
  for (let box = element.closest("details:not([open])"); box; box = box.parentElement.closest("details:not([open])")) box.open = true;
  element.scrollIntoView({ block });
}

// The next element of those that match, after the one that was reached last; null after the last.
export function next(selector) {
  const all = [...pane.querySelectorAll(selector)];
  const now = all.findIndex((one) => one.classList.contains("reached"));
  const found = all[now + 1] ?? null;
  if (!found) return null;
  all[now]?.classList.remove("reached");
  found.classList.add("reached");
  reveal(found);
  return found;
}
