import { fill, gettext } from "./i18n.js";

// Posts a form and gives the server's answer {said, …}; throws what it said instead.
export async function post(form, changes = {}, submitter = null) {
  const data = new FormData(form, submitter);
  for (const [name, value] of Object.entries(changes)) data.set(name, value);
  let answer;
  try {
    answer = await fetch(form.action, { method: "POST", body: data, headers: { Accept: "application/json" }, credentials: "same-origin" });
  } catch {
    throw new Error(gettext("The server does not answer; nothing was saved. Try again in a moment."));
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.said ?? fill(gettext("The server refused it ({status}); nothing was saved."), { status: answer.status }));
  return told;
}
