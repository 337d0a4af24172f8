// Shows the two responses of the pair in focus side by side, and hides the others.
import { fill, gettext } from "../common/i18n.js";

const SIDES = () => [gettext("Left"), gettext("Right")];

export class Pairs {
  constructor(panel) {
    this.panel = panel;
    this.grid = panel.querySelector(".pair-grid");
    this.cards = new Map([...this.grid.querySelectorAll("[data-response]")].map((card) => [card.dataset.response, card]));
    this.show();
    this.grid.dataset.ready = "";
  }
  // The cards move in the document too, so that Tab and screen readers find the left one first.
  show() {
    const shown = this.panel.querySelector(".pair.current")?.dataset.pair;
    if (!shown || shown === this.shown) return;
    this.shown = shown;
    const pair = shown.split("-");
    for (const [number, card] of this.cards) card.hidden = !pair.includes(number);
    pair.forEach((number, at) => {
      const card = this.cards.get(number);
      card.querySelector("[data-side]").textContent = SIDES()[at];
      card.setAttribute("aria-label", fill(gettext("{side}: response {number}"), { side: SIDES()[at], number }));
      this.grid.append(card);
      card.querySelector(".text").scrollTo(0, 0);
    });
  }
}
