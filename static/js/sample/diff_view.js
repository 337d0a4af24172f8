// The diff view: renders the two texts from the server as one text with the differences marked.
import { fill, gettext } from "../common/i18n.js";
import { describeUnlike, renderDiff, renderDifferences } from "./diff_render.js";

let running = null; // the AbortController of the latest diff

const count = (parts, side) => parts.filter((part) => part.side === side).length;

export async function renderDiffView(pane, always = false) {
  const box = pane.querySelector("[data-diff]:not([data-done])");
  if (!box) return;
  box.dataset.done = "";
  running?.abort();
  const { signal } = (running = new AbortController());
  const text = (name) => box.querySelector(`[data-${name}]`).textContent;
  const showStatus = (...content) => box.querySelector("[data-diff-status]").replaceChildren(...content);
  const slow = setTimeout(() => showStatus(gettext("Comparing…")), 150);
  try {
    const { likeness, parts } = await renderDifferences(text("there"), text("here"), always, signal);
    if (signal.aborted) return;
    if (!parts) return showStatus(`${describeUnlike(likeness)} `, createButton(box, pane));
    const out = box.querySelector("[data-diff-out]");
    renderDiff(out, parts);
    out.hidden = false;
    box.querySelector(".sides").hidden = true;
    showStatus(summarize(parts));
  } catch (error) {
    if (signal.aborted) return;
    const text = gettext("Could not compare the texts ({error}). Showing them side by side.");
    showStatus(fill(text, { error: error.message }));
  } finally {
    clearTimeout(slow);
  }
}

function createButton(box, pane) {
  const button = Object.assign(document.createElement("button"), { className: "small", textContent: gettext("word diff anyway") });
  button.type = "button";
  button.addEventListener("click", () => {
    delete box.dataset.done;
    renderDiffView(pane, true);
  });
  return button;
}

function summarize(parts) {
  const [gone, come] = [count(parts, "there"), count(parts, "here")];
  if (!gone && !come) return gettext("The texts are identical.");
  return fill(gettext("{gone} removed, {come} added"), { gone, come });
}
