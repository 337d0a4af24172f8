// How the project arranges its charts, for everybody: pinned charts, their order, wide ones, charts of queries. Maintainers
// change it: by keys, with the buttons of the large view, or by dragging the title of a chart.
import { root } from "./page.js";
import { MESSAGE_OF_ERROR, showMessage } from "../../common/ui.js";
import { fill, gettext } from "../../common/i18n.js";
import { buildHeaders } from "../../common/post.js";

export const mayArrange = root.dataset.mayArrange === "true";
const url = `${document.body.dataset.root}api/v1/projects/${encodeURIComponent(root.dataset.project)}/charts/`;

export class Board {
  constructor(onChange) {
    Object.assign(this, { pinned: [], order: [], wide: [], queries: [], version: -1, onChange, saving: Promise.resolve() });
  }

  // Returns whether it differs from what is shown.
  read(fresh) {
    if (fresh.version <= this.version) return false;
    Object.assign(this, fresh);
    return true;
  }

  toggle(list, key) {
    const on = !this[list].includes(key);
    this.change({ [list]: on ? [...this[list], key] : this[list].filter((other) => other !== key) });
    return on;
  }

  // Puts a chart before or after another one of the same section; `keys` are those of the section, in order. Dropped on a
  // pinned chart it is pinned, dropped on another one it is not.
  place(key, target, after, keys) {
    if (key === target) return;
    const without = keys.filter((other) => other !== key);
    const at = without.indexOf(target) + (after ? 1 : 0);
    const moved = [...without.slice(0, at), key, ...without.slice(at)];
    if (this.pinned.includes(target)) return this.change({ pinned: moved });
    const order = [...this.order.filter((other) => !moved.includes(other)), ...moved];
    this.change({ order, pinned: this.pinned.filter((other) => other !== key) });
  }

  // Shows the change at once and saves it. One request at a time, since each is based on the version of the one before.
  change(changes) {
    Object.assign(this, changes);
    this.onChange();
    this.saving = this.saving.then(() => this.save(changes)).catch((error) => showMessage(error.message, MESSAGE_OF_ERROR));
    return this.saving;
  }

  async save(changes) {
    const headers = { "Content-Type": "application/json", ...buildHeaders() };
    const body = JSON.stringify({ ...changes, version: this.version });
    let response;
    try {
      response = await fetch(url, { method: "PATCH", headers, body, credentials: "same-origin" });
    } catch {
      throw new Error(gettext("Server unreachable. Not saved; try again."));
    }
    if (response.ok) return void Object.assign(this, await response.json());
    const reason = (await response.json().catch(() => ({}))).error?.message;
    const now = await fetch(url).then((again) => again.json()).catch(() => null);
    if (now) Object.assign(this, now);
    this.onChange();
    throw new Error(reason ?? fill(gettext("Not saved: the server returned status {status}."), { status: response.status }));
  }
}

// Dragging the title of a chart onto another chart. `find(key)` returns the keys of its section.
export function enableDragging(board, find) {
  if (!mayArrange) return;
  let dragged = null;
  const boxAt = (event) => event.target.closest?.("figure.chart[data-chart]");
  const isAfter = (event, box) => event.clientX > box.getBoundingClientRect().left + box.clientWidth / 2;
  const marks = ["drop-before", "drop-after"];
  const clear = () => root.querySelectorAll(".drop-before, .drop-after").forEach((box) => box.classList.remove(...marks));
  root.addEventListener("dragstart", (event) => {
    dragged = boxAt(event)?.dataset.chart ?? null;
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", dragged);
  });
  root.addEventListener("dragover", (event) => {
    const box = boxAt(event);
    clear();
    if (!dragged || !box || box.dataset.chart === dragged) return;
    event.preventDefault();
    box.classList.add(isAfter(event, box) ? "drop-after" : "drop-before");
  });
  root.addEventListener("drop", (event) => {
    const box = boxAt(event);
    clear();
    if (!dragged || !box) return;
    event.preventDefault();
    board.place(dragged, box.dataset.chart, isAfter(event, box), find(box.dataset.chart));
  });
  root.addEventListener("dragend", () => (clear(), (dragged = null)));
}
