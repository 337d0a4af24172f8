// The token view: what was recorded of the token under the pointer, the next unlikely one, and the chart as a way there.
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { show } from "./reader.js";
import { next, reveal } from "./dom.js";

const shown = () => document.querySelector("[data-tokens]");
const every = () => [...document.querySelectorAll("[data-tokens] b")];
let values;

// Comes to the token that the address names, once for each pane.
export function dress(pane) {
  const tokens = pane.querySelector("[data-tokens]:not([data-done])");
  if (!tokens) return;
  tokens.dataset.done = "";
  values = JSON.parse(tokens.dataset.values);
  const here = tokens.querySelector("[aria-current]");
  if (here) reached(here);
}

function reached(token) {
  shown().querySelector(".reached")?.classList.remove("reached");
  token.classList.add("reached");
  reveal(token);
  tell(token);
}

const first = () => Number(shown().dataset.tokens);

// What was recorded of a token: its place among its siblings is its place in the window.
function tell(token) {
  const place = every().indexOf(token);
  const parts = Object.entries(values).flatMap(([name, all]) => (all[place] == null ? [] : [`${name} ${all[place]}${chance(name, all[place])}`]));
  token.title = [`#${(first() + place).toLocaleString("en")}`, ...parts].join(" · ");
  document.querySelector("[data-token-said]").textContent = token.title;
}

const chance = (name, value) => (name === shown().dataset.logprob ? ` (p ${Math.exp(Math.min(value, 0)).toPrecision(3)})` : "");

function goTo(at) {
  const token = every()[at - first()];
  if (token) reached(token);
  else show(null, { view: "tokens", at }, true);
}

document.addEventListener("pointerover", (event) => {
  const token = event.target.closest?.("[data-tokens] b");
  if (token) tell(token);
});

document.addEventListener("click", (event) => {
  const token = event.target.closest("[data-tokens] b");
  if (token) return reached(token);
  const chart = event.target.closest("[data-token-chart]");
  if (chart) {
    const box = chart.getBoundingClientRect();
    return goTo(Math.min(chart.dataset.tokenChart - 1, Math.floor((chart.dataset.tokenChart * (event.clientX - box.left)) / box.width)));
  }
  const button = event.target.closest("[data-next-low]");
  if (!button) return;
  const found = next("[data-tokens] .low");
  if (found) tell(found);
  else if (button.dataset.lowAfter) goTo(button.dataset.lowAfter);
  else say(gettext("No unlikely token follows"));
});
