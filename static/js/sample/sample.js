// What a sample's pane needs besides its text: what is rare is fetched when it is there. Copying exact text, landmarks.
import { copy, say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { next, reveal } from "./dom.js";

const pane = document.getElementById("sample");

function dress() {
  if (pane.querySelector("[data-math]")) import("../common/math.js").then((math) => math.render(pane));
  if (pane.querySelector("[data-diff]")) import("./diff_view.js").then((diff) => diff.compare(pane));
  if (pane.querySelector("[data-tokens], [data-token-chart]")) import("./token_view.js").then((token) => token.dress(pane));
  if (new URLSearchParams(location.search).has("find")) find((bar) => bar.again(pane));
}

// One promise, so that what was asked first happens first: two imports of a module may end in any order.
let finder;
const find = (act) => (finder ??= import("./find.js")).then(act);

// The field has the focus before its script is there: what is typed at once must not be taken for keys.
function type() {
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
  "[data-find-open]": () => (type(), find((bar) => bar.open(pane))),
  "[data-next-change]": () => next(".diff :is(del, ins)") ?? say(gettext("That was the last change")),
  "[data-copy-from]": (button) => copied(button.dataset.copyFrom),
};

// The file itself: marks, folds and cuts of the page are not in it.
async function copied(url) {
  try {
    const answer = await fetch(url, { credentials: "same-origin" });
    if (!answer.ok) throw new Error();
    await copy(await answer.text());
    say(gettext("Copied"));
  } catch {
    say(gettext("It could not be copied; the server does not answer."));
  }
}

if (pane) {
  document.addEventListener("click", (event) => {
    for (const [selector, act] of Object.entries(CLICKS)) {
      const found = event.target.closest(selector);
      if (!found) continue;
      event.preventDefault();
      return act(found);
    }
  });
  pane.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-find]")) return;
    event.preventDefault();
    find((bar) => bar.turn(1));
  });
  document.addEventListener("deck:settled", (event) => event.detail.panel === pane && dress());
  dress();
}
