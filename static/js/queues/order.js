// The order in which a person puts the responses of a group: best first, equal ones at one place.
export class Order {
  constructor(panel) {
    this.panel = panel;
    this.places = []; // lists of numbers, best first
    this.numbers = [...this.panel.querySelectorAll("[data-response]")].map((card) => card.dataset.response);
    this.joins = false; // the next number gets the place of the last one
    this.draw();
  }
  isComplete = () => this.places.flat().length === this.numbers.length;
  place(number) {
    if (this.places.flat().includes(number)) return;
    if (this.joins && this.places.length) this.places.at(-1).push(number);
    else this.places.push([number]);
    this.joins = false;
    const left = this.numbers.filter((other) => !this.places.flat().includes(other));
    if (left.length === 1 && this.places.length) this.places.push(left);
    this.draw();
  }
  takeBack() {
    this.places.at(-1)?.pop();
    this.places = this.places.filter((place) => place.length);
    this.joins = false;
    this.draw();
  }
  join() {
    this.joins = this.places.length > 0;
    this.draw();
  }
  draw() {
    const text = this.places.map((place) => place.join(" = ")).join("  >  ");
    this.panel.querySelector("#order").textContent = `${text}${this.joins ? " =" : ""}` || "–";
    for (const number of this.numbers) {
      const at = this.places.findIndex((place) => place.includes(number));
      const badge = this.panel.querySelector(`[data-place-of="${number}"]`);
      Object.assign(badge, { hidden: at < 0, textContent: at < 0 ? "" : at + 1 });
      badge.closest(".order-card").classList.toggle("placed", at >= 0);
      this.panel.querySelector(`[name="place.${number}"]`).value = at < 0 ? "" : at + 1;
    }
  }
}
