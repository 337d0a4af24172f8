// Sends a form with fetch.
import { fill, gettext } from "./i18n.js";

// Posts a form and returns the JSON response {message, …}; throws an error with the server's message if it fails.
export async function postForm(form, changes = {}, submitter = null) {
  const data = new FormData(form, submitter);
  for (const [name, value] of Object.entries(changes)) data.set(name, value);
  const headers = { Accept: "application/json" };
  let response;
  try {
    response = await fetch(form.action, { method: "POST", body: data, headers, credentials: "same-origin" });
  } catch {
    throw new Error(gettext("Server unreachable. Not saved; try again."));
  }
  const result = await response.json().catch(() => ({}));
  if (response.ok) return result;
  const unknown = fill(gettext("Not saved: the server returned status {status}."), { status: response.status });
  throw new Error(result.message ?? unknown);
}
