// The panes of the rows around the one that is read, several in one request, so that a key shows the next at once.
const FIRST = 3, AT_ONCE = 8, LEAST = 4, KEPT = 64;
const ready = new Map(); // id -> promise of its pane; null where the server gave none
let asking = false, how = "";

export const forget = (id) => (id ? ready.delete(id) : ready.clear());

// The pane of a sample, read as `query` says; undefined where nobody has asked for it.
export function paneOf(id, query) {
  return query === how ? ready.get(id) : undefined;
}

// Asks for those of `near()`, the next to be read first, that are not here yet. `of(ids)` is their address.
export async function look(near, query, of) {
  if (query !== how) forget();
  how = query;
  const wanted = near();
  const missing = wanted.filter((id) => !ready.has(id));
  const soon = wanted.slice(0, 2).some((id) => missing.includes(id));
  if (asking || !missing.length || (missing.length < LEAST && !soon)) return;
  const ids = missing.slice(0, ready.size ? AT_ONCE : FIRST);
  const answer = fetched(of(ids));
  for (const id of ids) ready.set(id, answer.then((panes) => panes[id] ?? null));
  for (const id of ready.keys()) if (ready.size > KEPT && !wanted.includes(id)) ready.delete(id);
  asking = true;
  await answer;
  asking = false;
  look(near, how, of); // also where the way to read changed meanwhile, and nobody has asked since
}

// Nothing where the server does not answer: then each is asked for when it is wanted.
async function fetched(url) {
  try {
    const answer = await fetch(url, { cache: "no-store", credentials: "same-origin" });
    return answer.ok && !answer.redirected ? await answer.json() : {};
  } catch {
    return {};
  }
}
