// The token view: values of the token under the pointer, next unlikely token, chart that jumps to a token.
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { show } from "./reader.js";
import { reveal, revealNext } from "./dom.js";

const tokenBox = () => document.querySelector("[data-tokens]");
const allTokens = () => [...document.querySelectorAll("[data-tokens] b")];
let values;

// Scrolls to the token in the URL, once per pane.
export function setUpTokens(pane) {
  const tokens = pane.querySelector("[data-tokens]:not([data-done])");
  if (!tokens) return;
  tokens.dataset.done = "";
  values = JSON.parse(tokens.dataset.values);
  const here = tokens.querySelector("[aria-current]");
  if (here) goToToken(here);
}

function goToToken(token) {
  tokenBox().querySelector(".reached")?.classList.remove("reached");
  token.classList.add("reached");
  reveal(token);
  showValues(token);
}

const first = () => Number(tokenBox().dataset.tokens);

// Shows the recorded values of a token. The index of its element is its index in the loaded range.
function showValues(token) {
  const index = allTokens().indexOf(token);
  const text = (name, value) => (value == null ? [] : [`${name} ${value}${chance(name, value)}`]);
  const parts = Object.entries(values).flatMap(([name, all]) => text(name, all[index]));
  token.title = [`#${(first() + index).toLocaleString("en")}`, ...parts].join(" · ");
  document.querySelector("[data-token-status]").textContent = token.title;
}

const isLogprob = (name) => name === tokenBox().dataset.logprob;
const chance = (name, value) => (isLogprob(name) ? ` (p ${Math.exp(Math.min(value, 0)).toPrecision(3)})` : "");

function goTo(at) {
  const token = allTokens()[at - first()];
  if (token) goToToken(token);
  else show(null, { view: "tokens", at }, true);
}

document.addEventListener("pointerover", (event) => {
  const token = event.target.closest?.("[data-tokens] b");
  if (token) showValues(token);
});

document.addEventListener("click", (event) => {
  const token = event.target.closest("[data-tokens] b");
  if (token) return goToToken(token);
  const chart = event.target.closest("[data-token-chart]");
  if (chart) {
    const box = chart.getBoundingClientRect();
    const count = chart.dataset.tokenChart;
    return goTo(Math.min(count - 1, Math.floor((count * (event.clientX - box.left)) / box.width)));
  }
  const button = event.target.closest("[data-next-low]");
  if (!button) return;
  const next = revealNext("[data-tokens] .low");
  if (next) showValues(next);
  else if (button.dataset.lowAfter) goTo(button.dataset.lowAfter);
  else showMessage(gettext("No more low-probability tokens"));
});
