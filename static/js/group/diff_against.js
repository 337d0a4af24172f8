// Shows columns of responses as word diffs against one of them.
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";

const textOf = (column) => column?.querySelector("pre");

// Renders the diff of each column against `base`; stops if `root` is replaced meanwhile.
export async function renderDiffsAgainst(base, columns, root) {
  const first = textOf(base)?.textContent;
  if (first === undefined || root.dataset.rendered) return;
  root.dataset.rendered = "1";
  const { differences, renderDiff } = await import("../sample/diff_render.js");
  try {
    for (const text of columns.map(textOf).filter(Boolean)) { // in sequence, because they share one worker
      const parts = await differences(first, text.textContent);
      if (!root.isConnected || !root.dataset.rendered) return;
      renderDiff(text, parts);
      if (parts.every(({ side }) => side === "both")) text.before(note(gettext("The texts are identical.")));
    }
  } catch {
    showMessage(gettext("Could not compare these texts."));
  }
}

const note = (text) => Object.assign(document.createElement("p"), { className: "muted", textContent: text });
