// What all charts of the page share: the state in the URL, the runs, the colours and the x range.
import { formatShort } from "./format.js";
import { fill, gettext } from "../../common/i18n.js";
import { buildUrl } from "../../common/panel.js";

export const root = document.querySelector("[data-charts]");
export const params = () => new URLSearchParams(location.search);
export const write = (changes) => history.replaceState(history.state, "", buildUrl(changes));
export const makeElement = (tag, fields = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
};

const EVAL_METRIC = /^(val|eval)(?![a-z0-9])|^samples\/eval\//i; // val-core/…, eval_reward, but not value_loss

let held;

export const page = {
  sync: window.uPlot.sync("steps"),
  axis: root.dataset.axis,
  all: root.dataset.attempt === "all",
  runs: [], weight: 0, log: false, colours: null, one: params().get("one") ?? "",
  span: () => (held ??= findSpan()),
  forgetSpan: () => (held = undefined),
  enlarge: () => {}, // set by index.js
  drawRun: () => {},
  // The page of a step's samples; steps of evaluation metrics are those of the eval split. A chart without lines leads to the
  // samples of the page's own run.
  stepUrl(line, step) {
    const { name = "", run = page.runs[0] } = line ?? {};
    const [, counted] = /^query:\w+\|(\w+)\|/.exec(name) ?? [];
    const split = (counted ? counted === "eval" : EVAL_METRIC.test(name)) ? "?split=eval" : "";
    return root.dataset.step.replace("RUN", encodeURIComponent(run.target)).replace("STEP", step) + split;
  },
  // For screen readers: what the keyboard moved to.
  announce(x, lines, values) {
    const texts = lines.map((line, n) => `${line.title} ${formatShort(values?.[n])}`);
    const place = page.axis === "step" ? fill(gettext("step {step}"), { step: x }) : x;
    document.getElementById("chart-status").textContent = `${place}: ${texts.join(", ")}`;
  },
};

// From the first to the last point of all charts, so that all have the same x range.
function findSpan() {
  let low = Infinity, high = -Infinity;
  for (const run of page.runs)
    for (const curves of Object.values(run.curves))
      for (const curve of curves) {
        const x = page.axis === "time" ? curve.hours : curve.steps;
        if (x?.length) [low, high] = [Math.min(low, x[0]), Math.max(high, x.at(-1))];
      }
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

// The options are replaced only if they are others: an open list would close.
export function updateOptions(field, options, value) {
  const key = JSON.stringify(options);
  if (field.dataset.options !== key) field.replaceChildren(...options.map(([name, text]) => new Option(text, name)));
  field.dataset.options = key;
  const wanted = options.some(([name]) => name === value) ? value : options[0][0];
  if (field.value !== wanted) field.value = wanted;
}

const KINDS = { flagged: "flagged", pinned: "accent", replayed: "reused", restarted: "partial", failed: "bad" };
const NAMES = ["muted", "hairline", "text", "paper"];

// Each variable of the style sheet is the colour of an element of its own, so that the styles are computed only once.
export function readColours() {
  const lines = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => `run-${n}`);
  const names = [...new Set([...NAMES, ...Object.values(KINDS), ...lines])];
  const box = makeElement("div", { hidden: true }, ...names.map((name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    probe.style.forcedColorAdjust = "none"; // with forced colours all lines would look alike
    return probe;
  }));
  document.body.append(box);
  const found = Object.fromEntries(names.map((name, at) => [name, getComputedStyle(box.children[at]).color]));
  box.remove();
  const events = Object.fromEntries(Object.entries(KINDS).map(([kind, name]) => [kind, found[name]]));
  return { ...Object.fromEntries(NAMES.map((name) => [name, found[name]])), events, lines: lines.map((name) => found[name]) };
}
