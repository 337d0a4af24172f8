// Columns of responses as word diffs against one of them.
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";

const textOf = (column) => column?.querySelector("pre");

// Draws each of `columns` against `base` while `root` stays what it is.
export async function drawAgainst(base, columns, root) {
  const first = textOf(base)?.textContent;
  if (first === undefined || root.dataset.drawn) return;
  root.dataset.drawn = "1";
  const { differences, draw } = await import("../sample/diff_render.js");
  try {
    for (const text of columns.map(textOf).filter(Boolean)) { // one after the other: they share a worker
      const parts = await differences(first, text.textContent);
      if (!root.isConnected || !root.dataset.drawn) return;
      draw(text, parts);
      if (parts.every(({ side }) => side === "both")) text.before(note(gettext("The same, word for word.")));
    }
  } catch {
    say(gettext("These texts could not be compared."));
  }
}

const note = (text) => Object.assign(document.createElement("p"), { className: "muted", textContent: text });
