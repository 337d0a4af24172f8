// The legend at the pointer: the name and the value of each line at the step under it.
import { formatShort } from "./format.js";

const tip = Object.assign(document.createElement("div"), { className: "chart-tip card", hidden: true });
tip.setAttribute("aria-hidden", "true"); // the label of the chart says the same
document.body.append(tip);
const MAX_ROWS = 24;

export function showTip(title, lines, values, at, nearest) {
  const head = Object.assign(document.createElement("b"), { textContent: title });
  const rows = lines.slice(0, MAX_ROWS).map((line, n) => {
    const row = Object.assign(document.createElement("span"), { className: `c${line.colour}${line === nearest ? " nearest" : ""}` });
    const swatch = Object.assign(document.createElement("i"), { className: `swatch c${line.colour}` });
    const value = Object.assign(document.createElement("output"), { textContent: formatShort(values[n]) });
    row.append(swatch, line.title, value);
    return row;
  });
  tip.replaceChildren(head, ...rows);
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), room = 14;
  const left = at.x + room + box.width > innerWidth ? at.x - room - box.width : at.x + room;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(at.y + room, innerHeight - box.height - 4))}px`;
}

export const hideTip = () => (tip.hidden = true);
