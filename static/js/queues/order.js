// The order in which a person puts the responses of a group: best first, equal ones at one place.
export class Order {
  // The form has the places of a draft. `changed` is called after each change of the person.
  constructor(panel, changed) {
    this.panel = panel;
    this.changed = changed;
    this.numbers = [...this.panel.querySelectorAll("[data-response]")].map((card) => card.dataset.response);
    const placeOf = (number) => Number(this.field(number).value);
    const entered = [...new Set(this.numbers.map(placeOf))].filter(Boolean).sort((a, b) => a - b);
    this.places = entered.map((place) => this.numbers.filter((number) => placeOf(number) === place)); // best first
    this.joins = false; // the next number gets the place of the last one
    this.draw();
  }
  field = (number) => this.panel.querySelector(`[name="place.${number}"]`);
  isComplete = () => this.places.flat().length === this.numbers.length;
  place(number) {
    if (this.places.flat().includes(number)) return;
    if (this.joins && this.places.length) this.places.at(-1).push(number);
    else this.places.push([number]);
    this.joins = false;
    const left = this.numbers.filter((other) => !this.places.flat().includes(other));
    if (left.length === 1 && this.places.length) this.places.push(left);
    this.draw();
    this.changed();
  }
  takeBack() {
    this.places.at(-1)?.pop();
    this.places = this.places.filter((place) => place.length);
    this.joins = false;
    this.draw();
    this.changed();
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
      this.field(number).value = at < 0 ? "" : at + 1;
    }
  }
}
