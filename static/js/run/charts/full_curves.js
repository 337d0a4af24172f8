// All points of the curves of one chart: the small charts have at most 500 points of each.
import { root } from "./page.js";

const MIN_POINTS = 60; // fewer points, in all attempts, were not downsampled: the server keeps points of 63 to 125 buckets
const MAX_POINTS = 20000;
const MAX_REQUESTS = 8; // at once

// As the small charts: the attempt of the URL is one of the page's own run.
function findAttempt(run) {
  const { attempt } = root.dataset;
  return attempt === "all" || (attempt && run.uid === root.dataset.run) ? attempt : "current";
}

// Returns a Map from the run's uid to its curves, or null if the page has all points already.
export async function loadFullCurves(page, chart) {
  const countPoints = (curves = []) => curves.reduce((sum, curve) => sum + curve.steps.length, 0);
  const coarse = page.runs.filter((run) => chart.names.some((name) => countPoints(run.curves[name]) >= MIN_POINTS));
  if (!coarse.length || chart.query || coarse.length > MAX_REQUESTS || coarse.some((run) => run.members)) return null;
  const load = async (run) => {
    const query = new URLSearchParams({ max_points: MAX_POINTS, attempt: findAttempt(run) });
    for (const name of chart.names) query.append("name", name);
    const response = await fetch(`${document.body.dataset.root}api/v1/runs/${run.uid}/metrics/?${query}`);
    if (!response.ok) throw new Error(response.status);
    const { series } = await response.json();
    return [run.uid, { ...run.curves, ...addAllHours(series, run.curves) }];
  };
  try {
    return new Map(await Promise.all(coarse.map(load)));
  } catch {
    return null; // the points of the small chart stay
  }
}

// On the time axis, a point has the hours between those of its neighbours in a curve that has times.
export function addHours(curve, { steps, hours } = {}) {
  if (!hours?.length) return curve;
  const place = (step) => {
    let at = steps.findIndex((other) => other >= step);
    if (at < 0) at = steps.length - 1;
    if (at === 0 || steps[at] <= step) return hours[at];
    const share = (step - steps[at - 1]) / (steps[at] - steps[at - 1]);
    return hours[at - 1] + share * (hours[at] - hours[at - 1]);
  };
  return { ...curve, hours: curve.steps.map(place) };
}

const addAllHours = (series, known) => Object.fromEntries(Object.entries(series).map(([name, curves]) => [name, curves.map((curve) =>
  addHours(curve, known[name]?.find((other) => other.attempt === curve.attempt && other.step_kind === curve.step_kind)))]));
