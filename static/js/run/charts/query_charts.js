// Charts of queries: what a query of samples finds in each step. The project keeps some (board.js), the URL has others (`ask`).
import { page, params } from "./page.js";
import { averageCurves } from "./data.js";
import { addHours } from "./full_curves.js";
import { fill, gettext } from "../../common/i18n.js";
import { writeMessage } from "../../common/ui.js";

const PREFIX = "query:";
const MAX_POINTS = 500;
const RETRY = 3000, MAX_RETRY = 60000; // ms after an error, longer each time
const MAX_CHECK = 8000; // ms
const curves = new Map(); // `${uid} ${key}` -> { curve, complete, version }
let version = 0; // increases when the runs change, so that new steps are counted

export const isQueryKey = (key) => key.startsWith(PREFIX);
// A `|` of `among` would end it, so it is written as %7C (rollouts/charts/query_curves.py).
export const buildChartKey = ({ measure, split, among, q }) =>
  PREFIX + [measure, split, measure === "share" ? among.replaceAll("|", "%7C") : "", q].join("|");
export const forgetCounts = () => (version += 1);

export function listQueryCharts(board) {
  const texts = new Set([...board.queries, ...params().getAll("ask")]);
  return [...texts].map(parse).filter(Boolean);
}

function parse(text) {
  const [measure, split, escaped = "", ...rest] = text.split("|");
  const among = escaped.replaceAll("%7C", "|"), q = rest.join("|"), key = PREFIX + text;
  const titles = {
    share: among ? gettext("share of {q} among {among}") : gettext("share of {q}"), count: gettext("number of {q}"),
    score: q ? gettext("mean score of {q}") : gettext("mean score"), length: q ? gettext("mean length of {q}") : gettext("mean length"),
  };
  if (!titles[measure] || !split) return null;
  const title = fill(titles[measure], { q, among }) + (split === "train" ? "" : ` (${split})`);
  return { key, title, names: [key], kind: "line", query: { measure, split, among, q } };
}

// The URL of this page with these charts of queries.
export function writeAsked(texts) {
  const url = new URL(location.href);
  url.searchParams.delete("ask");
  for (const text of texts) url.searchParams.append("ask", text);
  history.replaceState(history.state, "", url);
}

export const askedTexts = () => params().getAll("ask");

async function request(uid, { query }, maxPoints = MAX_POINTS) {
  const search = new URLSearchParams({ ...query, max_points: maxPoints });
  const response = await fetch(`${document.body.dataset.root}api/v1/runs/${uid}/query-curve/?${search}`, { cache: "no-store" });
  const result = await response.json().catch(() => ({}));
  if (response.ok) return result;
  const message = result.error?.message ?? fill(gettext("The server returned status {status}."), response);
  throw Object.assign(new Error(message), { status: response.status });
}

// Checks a query by counting it for the page's own run. Throws an error with the server's message. Only the count of all steps
// shows that no sample has a logged key, so it goes on until a step has an answer.
async function checkQuery(uid, text) {
  const end = performance.now() + MAX_CHECK;
  let result;
  do result = await request(uid, parse(text));
  while (!result.complete && !result.steps.length && performance.now() < end);
}

// The curve of a run or of a group of runs, as far as it is known.
function findCurve(run, key) {
  if (!run.members) return curves.get(`${run.uid} ${key}`)?.curve;
  const known = run.members.map((member) => curves.get(`${member.uid} ${key}`)?.curve).filter(Boolean);
  return known.length ? averageCurves(known) : null;
}

// The hours of a run's steps: of each attempt the curve with most points, where no later attempt has one.
function buildClock(run, step_kind) {
  const longest = new Map(); // by number of the attempt
  const timed = Object.entries(run.curves).filter(([name]) => !isQueryKey(name)).flatMap(([, own]) => own);
  for (const curve of timed.filter((other) => other.hours?.length && other.step_kind === step_kind))
    if (!(longest.get(curve.number)?.steps.length >= curve.steps.length)) longest.set(curve.number, curve);
  let clock = []; // [step, hours]
  for (const { steps, hours } of [...longest.values()].sort((a, b) => a.number - b.number)) {
    const others = clock.filter(([step]) => step < steps[0] || step > steps.at(-1));
    clock = [...others, ...steps.map((step, at) => [step, hours[at]])].sort(([a], [b]) => a - b);
  }
  return { steps: clock.map(([step]) => step), hours: clock.map(([, at]) => at) };
}

export function attachCurves(runs, charts) {
  for (const run of runs)
    for (const { key } of charts) {
      const known = findCurve(run, key);
      if (known) run.curves[key] = [page.axis === "time" ? addHours(known, buildClock(run, known.step_kind)) : known];
    }
}

// Counts until all steps are known. `chart` shows the progress and is drawn again after each answer.
export async function countSteps(chart, spec, runs, redraw, wait = RETRY) {
  const now = version;
  const uids = [...new Set(runs.flatMap((run) => run.members?.map((member) => member.uid) ?? [run.uid]))];
  const maxPoints = runs.some((run) => run.members) ? 0 : MAX_POINTS; // the mean needs the same steps of each run
  for (const uid of uids) {
    const id = `${uid} ${spec.key}`;
    if (curves.get(id)?.version === now && curves.get(id).complete) continue;
    try {
      let result;
      do {
        result = await request(uid, spec, maxPoints);
        if (now !== version) return; // newer runs are counted by another call
        wait = RETRY;
        const { step_kind, steps, values, done, total, complete } = result;
        const known = values.map((value) => value ?? undefined); // null would be a NaN that the trainer logged
        curves.set(id, { curve: { attempt: "", number: 0, step_kind, steps, values: known }, complete, version: now });
        attachCurves(runs, [spec]);
        const counts = { done: done.toLocaleString("en"), total: total.toLocaleString("en") };
        chart.showNote(complete ? "" : fill(gettext("counting: {done} of {total} steps"), counts));
        redraw();
      } while (!result.complete && chart.box.isConnected);
    } catch (error) {
      const isUnreachable = error instanceof TypeError;
      chart.showNote(isUnreachable ? gettext("Server unreachable. Trying again.") : error.message);
      const mayPass = isUnreachable || error.status === 429 || error.status >= 500;
      const next = Math.min(2 * wait, MAX_RETRY);
      const again = () => now === version && chart.box.isConnected && countSteps(chart, spec, runs, redraw, next);
      if (mayPass) setTimeout(again, wait);
      return;
    }
  }
  if (!runs.some((run) => run.curves[spec.key]?.[0].steps.length)) chart.showNote(gettext("No samples in any step."));
}

// The dialog behind “Add chart”.
let opened = 0; // how often
export function openForm(uid, onAdd) {
  const mine = ++opened, isLeft = () => mine !== opened || !dialog.open;
  const dialog = document.getElementById("add-chart"), form = dialog.querySelector("form");
  const problem = document.getElementById("add-chart-error");
  const fields = form.elements;
  const update = () => (form.querySelector("[data-among]").hidden = fields.measure.value !== "share");
  fields.measure.onchange = update;
  form.querySelector("[data-cancel]").onclick = () => dialog.close();
  form.onsubmit = async (event) => {
    event.preventDefault();
    problem.hidden = true;
    const spec = { measure: fields.measure.value, split: fields.split.value, among: fields.among.value.trim(), q: fields.q.value.trim() };
    const text = buildChartKey(spec).slice(PREFIX.length);
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    try {
      await checkQuery(uid, text);
      if (isLeft()) return; // cancelled
      dialog.close();
      onAdd(text);
    } catch (error) {
      if (isLeft()) return;
      writeMessage(problem, error instanceof TypeError ? gettext("Server unreachable.") : error.message);
      problem.hidden = false;
      fields.q.focus();
    } finally {
      if (mine === opened) button.disabled = false;
    }
  };
  problem.hidden = true;
  form.querySelector("[type=submit]").disabled = false;
  update();
  dialog.showModal();
  fields.q.focus();
}
