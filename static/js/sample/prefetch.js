// Loads the panes of the rows around the current one, several per request, so that the next sample appears at once.
const MAX_FIRST = 3, MAX_BATCH = 8, MIN_BATCH = 4, MAX_CACHED = 64;
const TIMEOUT = 30000; // ms
const ready = new Map(); // id -> promise of its pane; null if the server sent none
let loading = false, current = "";

export const forget = (id) => (id ? ready.delete(id) : ready.clear());

// The pane of a sample in the view that `query` names; undefined if it was not requested.
export function getPane(id, query) {
  return query === current ? ready.get(id) : undefined;
}

// Requests the missing panes of `near()`, in that order. `buildUrl(ids)` returns the URL.
export async function prefetch(near, query, buildUrl) {
  if (query !== current) forget();
  current = query;
  const nearby = near();
  const missing = nearby.filter((id) => !ready.has(id));
  const soon = nearby.slice(0, 2).some((id) => missing.includes(id));
  if (loading || !missing.length || (missing.length < MIN_BATCH && !soon)) return;
  const ids = missing.slice(0, ready.size ? MAX_BATCH : MAX_FIRST);
  const loaded = fetchPanes(buildUrl(ids));
  for (const id of ids) ready.set(id, loaded.then((panes) => panes[id] ?? null));
  for (const id of ready.keys()) if (ready.size > MAX_CACHED && !nearby.includes(id)) ready.delete(id);
  loading = true;
  await loaded;
  loading = false;
  prefetch(near, current, buildUrl); // the view may have changed meanwhile
}

// Returns nothing if the request fails: then each pane is loaded when it is opened.
async function fetchPanes(url) {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT), cache: "no-store", credentials: "same-origin" });
    return response.ok && !response.redirected ? await response.json() : {};
  } catch {
    return {};
  }
}
