// The hits of the query: scrolls to the first one of the sample, from one to the next, and on to the next sample of the list.
import { fill, gettext } from "../common/i18n.js";
import { showMessage } from "../common/ui.js";
import { reveal } from "./dom.js";
import { hasList, showRowWith } from "./reader.js";

// The hits in the response come first, as in the list.
function list(pane) {
  const inside = (part) => [...pane.querySelectorAll(`${part} mark.hit`)];
  return [...inside(".text.response"), ...inside(".text.prompt")];
}

// A hit that is in view stays where it is: the head of the sample should not scroll away.
function isVisible(pane, hit) {
  const [frame, box] = [pane.getBoundingClientRect(), hit.getBoundingClientRect()];
  const bottom = Math.min(frame.bottom, innerHeight);
  return box.height > 0 && box.top >= Math.max(frame.top, 0) && box.bottom <= bottom && !hit.closest("details:not([open])");
}

function go(pane, hits, at) {
  for (const hit of pane.querySelectorAll("mark.hit.reached")) hit.classList.remove("reached");
  hits[at].classList.add("reached");
  if (!isVisible(pane, hits[at])) reveal(hits[at]);
  const place = { at: (at + 1).toLocaleString("en"), count: hits.length.toLocaleString("en") };
  pane.querySelector("[data-hits] output").textContent = fill(gettext("hit {at} of {count}"), place);
}

export function showFirstHit(pane) {
  const hits = list(pane);
  if (hits.length && pane.querySelector("[data-hits]")) go(pane, hits, 0);
}

const findReached = (hits) => hits.findIndex((hit) => hit.classList.contains("reached"));

// Inside the sample: after the last hit comes the first one.
export function moveHitBy(pane, by) {
  const hits = list(pane);
  if (hits.length) go(pane, hits, (findReached(hits) + by + hits.length) % hits.length);
}

// After the last hit of the sample comes the first one of the next sample in the list that has one.
export async function moveToHitInList(pane, by) {
  const hits = list(pane);
  const next = findReached(hits) + by;
  if (hits[next]) return go(pane, hits, next);
  if (!hasList()) return moveHitBy(pane, by);
  if (!(await showRowWith("mark.hit", by))) {
    showMessage(by > 0 ? gettext("Last hit in the list") : gettext("First hit in the list"));
  } else if (by < 0) moveHitBy(pane, -1); // a new sample is at its first hit
}
