// The sample pane: loads the scripts of its views on demand; copies the exact text; jumps to parts of the text.
import { copyFrom, showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { reveal, revealNext } from "./dom.js";
import { moveHitBy, moveToHitInList, showFirstHit } from "./hits.js";

const pane = document.getElementById("sample");

function setUpPane() {
  if (pane.querySelector("[data-math]")) import("../common/math.js").then((math) => math.renderMath(pane));
  if (pane.querySelector("[data-diff]")) import("./diff_view.js").then((diff) => diff.renderDiffView(pane));
  if (pane.querySelector("[data-tokens], [data-token-chart]")) import("./token_view.js").then((token) => token.setUpTokens(pane));
  if (pane.querySelector("[data-hits]")) showFirstHit(pane);
  if (new URLSearchParams(location.search).has("find")) withFind((bar) => bar.resumeFind(pane));
}

// One promise keeps the order of the calls: two imports of a module may resolve in any order.
let finder;
const withFind = (act) => (finder ??= loadFinder()).then(act);
const loadFinder = () => import("./find.js").catch((error) => {
  finder = null; // the next key tries again
  throw error;
});

// Focuses the field before its script is loaded, so that typed characters do not act as shortcuts.
function focusFind() {
  const words = getSelection().toString().slice(0, 200);
  const form = pane.querySelector("form[data-find]");
  const field = form.querySelector("input");
  form.hidden = false;
  if (words) field.value = words;
  field.focus();
  field.select();
}

const CLICKS = {
  "[data-jump]": (link) => reveal(document.getElementById(link.dataset.jump), "start"),
  "[data-find-open]": () => (focusFind(), withFind((bar) => bar.openFind(pane))),
  "[data-next-change]": () => revealNext(".diff :is(del, ins)") ?? showMessage(gettext("No more changes")),
  "[data-hit]": (button) => moveHitBy(pane, Number(button.dataset.hit)),
  "[data-list-hit]": (button) => moveToHitInList(pane, Number(button.dataset.listHit)),
  "[data-copy-from]": (button) => copyFrom(button.dataset.copyFrom), // not from the page: it has marks, folds and cuts
};

if (pane) {
  document.addEventListener("click", (event) => {
    for (const [selector, act] of Object.entries(CLICKS)) {
      const element = event.target.closest(selector);
      if (!element) continue;
      event.preventDefault();
      return act(element);
    }
  });
  pane.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-find]")) return;
    event.preventDefault();
    withFind((bar) => bar.moveFindBy(1));
  });
  document.addEventListener("deck:settled", (event) => event.detail.panel === pane && setUpPane());
  setUpPane();
}
