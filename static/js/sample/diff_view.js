// The diff view: the two texts that the server sent, as one text with what differs.
import { fill, gettext } from "../common/i18n.js";
import { differences, draw } from "./diff_render.js";

let asked = 0;

const count = (parts, side) => parts.filter((part) => part.side === side).length;

export async function compare(pane) {
  const box = pane.querySelector("[data-diff]:not([data-done])");
  if (!box) return;
  box.dataset.done = "";
  const mine = ++asked;
  const text = (name) => box.querySelector(`[data-${name}]`).textContent;
  const say = (words) => (box.querySelector("[data-diff-said]").textContent = words);
  const slow = setTimeout(() => say(gettext("Comparing…")), 150);
  try {
    const parts = await differences(text("there"), text("here"));
    if (mine !== asked) return;
    const out = box.querySelector("[data-diff-out]");
    draw(out, parts);
    out.hidden = false;
    box.querySelector(".sides").hidden = true;
    say(told(parts));
  } catch (error) {
    say(fill(gettext("The browser could not compare the texts ({error}); here they are side by side."), { error: error.message }));
  } finally {
    clearTimeout(slow);
  }
}

function told(parts) {
  const [gone, come] = [count(parts, "there"), count(parts, "here")];
  return gone + come ? fill(gettext("{gone} only there, {come} only here"), { gone, come }) : gettext("The two texts are the same.");
}
