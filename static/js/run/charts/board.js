// How the project arranges its charts, for everybody: pinned charts, their order, wide ones, charts of queries. Maintainers
// change it: by keys, with the buttons of the large view, or by dragging the title of a chart.
import { root } from "./page.js";
import { MESSAGE_OF_ERROR, showMessage } from "../../common/ui.js";
import { fill, gettext } from "../../common/i18n.js";
import { buildHeaders } from "../../common/post.js";

export const mayArrange = root.dataset.mayArrange === "true";
const url = `${document.body.dataset.root}api/v1/projects/${encodeURIComponent(root.dataset.project)}/charts/`;

export const addKey = (list, key) => (list.includes(key) ? list : [...list, key]);
export const removeKey = (list, key) => list.filter((other) => other !== key);

// Puts the key before or after the target, or at the end if another user has removed that.
function moveKey(list, key, target, after) {
  const others = removeKey(list, key), at = others.indexOf(target);
  return others.toSpliced(at < 0 ? others.length : at + (after ? 1 : 0), 0, key);
}

// `saved` is what the server has. A pending change is a function that returns the lists that it replaces: it is applied to
// whatever the server has when it is sent.
export class Board {
  constructor(onChange) {
    const saved = { pinned: [], order: [], wide: [], queries: [], version: -1 };
    Object.assign(this, { saved, pending: [], onChange, saving: Promise.resolve() });
    this.read(saved);
  }

  // Shows the lists with the pending changes. Returns whether they are newer than what was known.
  read(fresh) {
    const isNewer = fresh.version > this.saved.version;
    if (isNewer) this.saved = fresh;
    Object.assign(this, this.pending.reduce((lists, apply) => ({ ...lists, ...apply(lists) }), this.saved));
    return isNewer;
  }

  toggle(list, key) {
    const edit = this[list].includes(key) ? removeKey : addKey;
    this.change((lists) => ({ [list]: edit(lists[list], key) }));
  }

  // Puts a chart before or after another one of the same section; `keys` are those of the section, in order. Dropped on a
  // pinned chart it is pinned, dropped on another one it is not.
  place(key, target, after, keys) {
    if (key === target) return;
    // Other runs may have pinned charts that this page does not show.
    if (this.pinned.includes(target)) return this.change(({ pinned }) => ({ pinned: moveKey(pinned, key, target, after) }));
    const moved = moveKey(keys, key, target, after);
    this.change(({ order, pinned }) => ({
      order: [...order.filter((other) => !moved.includes(other)), ...moved], pinned: removeKey(pinned, key),
    }));
  }

  // Shows the change at once and saves it. One request at a time, since each is based on the version of the one before.
  // Returns whether it was saved.
  change(apply) {
    this.pending.push(apply);
    this.saving = this.saving.catch(() => {}).then(() => this.save(apply));
    this.read(this.saved);
    this.onChange();
    return this.saving;
  }

  // If a change is not saved, those that follow it are not sent either, and the page shows what the server has.
  async save(apply) {
    if (!this.pending.includes(apply)) return false;
    const headers = { "Content-Type": "application/json", ...buildHeaders() };
    const body = JSON.stringify({ ...apply(this.saved), version: this.saved.version });
    const response = await fetch(url, { method: "PATCH", headers, body, credentials: "same-origin" }).catch(() => null);
    const answer = await response?.json().catch(() => null);
    if (response?.ok && answer) {
      this.pending = this.pending.filter((other) => other !== apply);
      this.read(answer);
      return true;
    }
    this.pending = [];
    const fresh = response && (await fetch(url).then((again) => (again.ok ? again.json() : null)).catch(() => null));
    this.read(fresh ?? this.saved);
    this.onChange();
    const unknown = response
      ? fill(gettext("Not saved: the server returned status {status}."), response)
      : gettext("Server unreachable. Not saved; try again.");
    showMessage(answer?.error?.message ?? unknown, MESSAGE_OF_ERROR);
    return false;
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
    if (!event.target.matches?.(".chart-name")) return; // selected text, for example
    dragged = boxAt(event).dataset.chart;
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
