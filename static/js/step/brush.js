// A drag over the scatter plot or the score histogram adds terms to the query.

const MIN_DRAG = 4; // pixels; less is a click
const SVG = "http://www.w3.org/2000/svg";
const clamp = (share) => Math.min(1, Math.max(0, share));
// A number with as many digits as the chart can resolve.
const short = (value, span) => String(Number(value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(span))))));

// --- score x length ---------------------------------------------------------------------------------------------------

// The plot has a margin of 8 % above and below for the dots.
const score = (share, { low, high }) => Number(high) - ((share - 0.08) / 0.84) * (high - low);

function buildTerms({ left, right, top, bottom }, data) {
  const span = data.high - data.low;
  const lowest = score(bottom, data), highest = score(top, data);
  const terms = [];
  if (lowest > data.low || highest < data.high) {
    terms.push(`score:${lowest <= data.low ? "" : short(lowest, span)}..${highest >= data.high ? "" : short(highest, span)}`);
  }
  if (left > 0 || right < 1) {
    terms.push(`${data.keyX}:${left ? Math.floor(left * data.right) : ""}..${right < 1 ? Math.ceil(right * data.right) : ""}`);
  }
  return terms.join(" ");
}

function shares(chart, from, to) {
  const box = chart.getBoundingClientRect();
  const x = [from.clientX, to.clientX].map((at) => clamp((at - box.left) / box.width)).sort((a, b) => a - b);
  const y = [from.clientY, to.clientY].map((at) => clamp((at - box.top) / box.height)).sort((a, b) => a - b);
  return { left: x[0], right: x[1], top: y[0], bottom: y[1] };
}

function brushScatter(chart, down) {
  const mark = document.createElementNS(SVG, "rect");
  mark.setAttribute("class", "brush");
  chart.append(mark);
  return {
    move(event) {
      const { left, right, top, bottom } = shares(chart, down, event);
      const rect = { x: left, y: top, width: right - left, height: bottom - top };
      for (const [name, share] of Object.entries(rect)) mark.setAttribute(name, `${100 * share}%`);
    },
    done: (event) => buildTerms(shares(chart, down, event), chart.dataset),
    end: () => mark.remove(),
  };
}

// --- score bars -------------------------------------------------------------------------------------------------------

function brushBars(chart, down) {
  const bars = [...chart.children];
  const nearest = (event) => {
    const at = bars.findIndex((bar) => event.clientX <= bar.getBoundingClientRect().right);
    return at < 0 ? bars.length - 1 : at;
  };
  const between = (event) => [nearest(down), nearest(event)].sort((a, b) => a - b);
  return {
    move(event) {
      const [first, last] = between(event);
      bars.forEach((bar, at) => bar.classList.toggle("brushed", at >= first && at <= last));
    },
    done(event) {
      const [first, last] = between(event);
      return `${bars[first].dataset.above} ${bars[last].dataset.below}`.trim();
    },
    end: () => bars.forEach((bar) => bar.classList.remove("brushed")),
  };
}

// Ignores the click event at the end of a drag. After 60 ms a click is a real one.
function ignoreClick() {
  const over = new AbortController();
  addEventListener("click", (click) => (click.preventDefault(), click.stopPropagation()), { capture: true, signal: over.signal });
  setTimeout(() => over.abort(), 60);
}

// --- the drag ---------------------------------------------------------------------------------------------------------

const far = (from, to) => Math.hypot(to.clientX - from.clientX, to.clientY - from.clientY) >= MIN_DRAG;

// Calls `write(query)` with the new query after each drag.
export function attachBrush(write) {
  document.addEventListener("pointerdown", (down) => startDrag(down, write));
}

function startDrag(down, write) {
  const chart = down.target.closest?.("[data-brush], [data-bins]");
  if (!chart || down.button !== 0 || down.ctrlKey || down.metaKey || down.shiftKey) return;
  let brush;
  const ends = new AbortController();
  const move = (event) => {
    if (!brush && !far(down, event)) return;
    brush ??= chart.matches("[data-brush]") ? brushScatter(chart, down) : brushBars(chart, down);
    brush.move(event);
  };
  const stop = (event) => {
    ends.abort();
    if (!brush) return;
    brush.end();
    if (event.type === "pointerup") write(`${chart.dataset.rest} ${brush.done(event)}`.trim());
    ignoreClick();
  };
  addEventListener("pointermove", move, { signal: ends.signal });
  addEventListener("pointerup", stop, { signal: ends.signal });
  addEventListener("pointercancel", stop, { signal: ends.signal });
  addEventListener("keydown", (event) => event.key === "Escape" && stop(event), { signal: ends.signal });
}
