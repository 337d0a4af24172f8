// Charts of queries: what a query of samples finds in each step. The project keeps some (board.js), the URL has others (`ask`).
import { page, params } from "./page.js";
import { averageCurves } from "./data.js";
import { addHours } from "./full_curves.js";
import { fill, gettext } from "../../common/i18n.js";
import { writeMessage } from "../../common/ui.js";

const PREFIX = "query:";
const MAX_POINTS = 500;
const RETRY = 3000; // ms after an error
const curves = new Map(); // `${uid} ${key}` -> { curve, complete, version }
let version = 0; // increases when the runs change, so that new steps are counted

export const isQueryKey = (key) => key.startsWith(PREFIX);
export const keyOf = ({ measure, split, among, q }) => PREFIX + [measure, split, measure === "share" ? among : "", q].join("|");
export const forgetCounts = () => (version += 1);

export function listQueryCharts(board) {
  const texts = new Set([...board.queries, ...params().getAll("ask")]);
  return [...texts].map(parse).filter(Boolean);
}

function parse(text) {
  const [measure, split, among, ...rest] = text.split("|");
  const q = rest.join("|"), key = PREFIX + text;
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
  if (!response.ok) throw new Error(result.error?.message ?? fill(gettext("The server returned status {status}."), response));
  return result;
}

// Checks a query by counting it for the page's own run. Throws an error with the server's message.
export const checkQuery = (uid, text) => request(uid, parse(text));

// The curve of a run or of a group of runs, as far as it is known.
function findCurve(run, key) {
  if (!run.members) return curves.get(`${run.uid} ${key}`)?.curve;
  const known = run.members.map((member) => curves.get(`${member.uid} ${key}`)?.curve).filter(Boolean);
  return known.length ? averageCurves(known) : null;
}

export function attachCurves(runs, charts) {
  for (const run of runs)
    for (const { key } of charts) {
      const known = findCurve(run, key);
      if (!known) continue;
      const longest = Object.values(run.curves).flat().filter((other) => other.hours).sort((a, b) => b.steps.length - a.steps.length)[0];
      run.curves[key] = [page.axis === "time" ? addHours(known, longest) : known];
    }
}

// Counts until all steps are known. `chart` shows the progress and is drawn again after each answer.
export async function countSteps(chart, spec, runs, redraw) {
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
        const { step_kind, steps, values, done, total, complete } = result;
        const known = values.map((value) => value ?? undefined); // null would be a NaN that the trainer logged
        curves.set(id, { curve: { attempt: "", number: 0, step_kind, steps, values: known }, complete, version: now });
        attachCurves(runs, [spec]);
        const counts = { done: done.toLocaleString("en"), total: total.toLocaleString("en") };
        chart.showNote(complete ? "" : fill(gettext("counting: {done} of {total} steps"), counts));
        redraw();
      } while (!result.complete && chart.box.isConnected);
    } catch (error) {
      chart.showNote(error instanceof TypeError ? gettext("Server unreachable. Trying again.") : error.message);
      if (error instanceof TypeError) setTimeout(() => now === version && countSteps(chart, spec, runs, redraw), RETRY);
      return;
    }
  }
  if (!runs.some((run) => run.curves[spec.key]?.[0].steps.length)) chart.showNote(gettext("No samples in any step."));
}

// The dialog behind “Add chart”.
export function openForm(uid, onAdd) {
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
    const text = keyOf(spec).slice(PREFIX.length);
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    try {
      await checkQuery(uid, text);
      dialog.close();
      onAdd(text);
    } catch (error) {
      writeMessage(problem, error instanceof TypeError ? gettext("Server unreachable.") : error.message);
      problem.hidden = false;
      fields.q.focus();
    } finally {
      button.disabled = false;
    }
  };
  problem.hidden = true;
  update();
  dialog.showModal();
  fields.q.focus();
}
