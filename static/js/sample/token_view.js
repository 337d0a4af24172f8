// The token view: values of the token under the pointer, next unlikely token, chart that jumps to a token.
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { showSample } from "./reader.js";
import { reveal } from "./dom.js";

// As text or as a table: a <b> or a row per token.
const tokenBox = () => document.querySelector("[data-tokens]");
const allTokens = () => [...tokenBox().querySelectorAll("b, tr")];
let values;

// Scrolls to the token in the URL, once per pane.
export function setUpTokens(pane) {
  const tokens = pane.querySelector("[data-tokens]:not([data-done])");
  if (!tokens) return;
  tokens.dataset.done = "";
  values = JSON.parse(tokens.dataset.values ?? "{}"); // a table shows them
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
  else showSample(null, { view: "tokens", at, as: tokenBox().matches("tbody") ? "table" : "" }, true);
}

// The next unlikely token after the one that was reached last.
function findNextLow() {
  const tokens = allTokens();
  const at = tokens.findIndex((token) => token.classList.contains("reached"));
  return tokens.slice(at + 1).find((token) => token.classList.contains("low"));
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
  setUpTokens(document); // a key that has waited for the pane comes before `setUpPane`
  const next = findNextLow();
  if (next) goToToken(next);
  else if (button.dataset.lowAfter) goTo(button.dataset.lowAfter);
  else showMessage(gettext("No more low-probability tokens"));
});
