// The token view: what was recorded of the token under the pointer, the next unlikely one, and the chart as a way there.
import { say } from "./frame.js";
import { show } from "./reader.js";
import { next, reveal } from "./sample.js";

const said = () => document.querySelector("[data-token-said]");

// Comes to the token that the address names, once for each pane.
export function dress(pane) {
  const here = pane.querySelector("[data-tokens]:not([data-done]) [aria-current]");
  pane.querySelector("[data-tokens]")?.setAttribute("data-done", "");
  if (here) reached(here);
}

function reached(token) {
  document.querySelector("[data-tokens] .reached")?.classList.remove("reached");
  token.classList.add("reached");
  reveal(token);
  tell(token);
}

function tell(token) {
  said().textContent = token.dataset.t;
  token.title = token.dataset.t;
}

function goTo(at) {
  const token = document.getElementById(`t${at}`);
  if (token) reached(token);
  else show(null, { view: "tokens", at }, true);
}

document.addEventListener("pointerover", (event) => {
  const token = event.target.closest?.("[data-tokens] [data-t]");
  if (token) tell(token);
});

document.addEventListener("click", (event) => {
  const token = event.target.closest("[data-tokens] [data-t]");
  if (token) return reached(token);
  const chart = event.target.closest("[data-token-chart]");
  if (chart) {
    const box = chart.getBoundingClientRect();
    return goTo(Math.min(chart.dataset.tokenChart - 1, Math.floor((chart.dataset.tokenChart * (event.clientX - box.left)) / box.width)));
  }
  const button = event.target.closest("[data-next-low]");
  if (!button) return;
  const found = next("[data-tokens] [data-low]");
  if (found) tell(found);
  else if (button.dataset.lowAfter) goTo(button.dataset.lowAfter);
  else say("No unlikely token follows");
});
