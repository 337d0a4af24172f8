// Shows columns of responses as word diffs against one of them.
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";

const textOf = (column) => column?.querySelector("pre");
let lastRendering = 0;

// Renders the diff of each column against `base`. Stops if `root` gets new content meanwhile: a morph keeps its elements, puts
// other texts into them and removes what the server does not know, here `data-rendered`.
export async function renderDiffsAgainst(base, columns, root) {
  const first = textOf(base)?.textContent;
  if (first === undefined || root.dataset.rendered) return;
  const rendering = (root.dataset.rendered = String(++lastRendering));
  const texts = columns.map(textOf).filter(Boolean).map((text) => [text, text.textContent]); // before they become diffs
  const { describeUnlike, renderDifferences, renderDiff } = await import("../sample/diff_render.js");
  const show = async (text, whole, always = false) => {
    const { likeness, parts } = await renderDifferences(first, whole, always);
    if (!root.isConnected || root.dataset.rendered !== rendering) return false;
    if (parts) renderDiff(text, parts);
    if (parts?.every(({ side }) => side === "both")) text.before(note(gettext("The texts are identical.")));
    if (!parts) text.before(noteUnlike(describeUnlike(likeness), () => show(text, whole, true)));
    return true;
  };
  try {
    for (const [text, whole] of texts) { // in sequence: each long one has a worker
      if (!(await show(text, whole))) return;
    }
  } catch {
    showMessage(gettext("Could not compare these texts."));
  }
}

const note = (text) => Object.assign(document.createElement("p"), { className: "muted diff-note", textContent: text });

// The texts stay side by side; a button shows the word diff.
function noteUnlike(text, compare) {
  const button = Object.assign(document.createElement("button"), { className: "small", textContent: gettext("word diff anyway") });
  const line = note(`${text} `);
  button.type = "button";
  button.addEventListener("click", () => (line.remove(), compare()));
  line.append(button);
  return line;
}
