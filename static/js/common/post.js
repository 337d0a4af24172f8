// Sends a form with fetch.
import { fill, gettext } from "./i18n.js";

// Posts a form and returns the JSON response {message, …}; throws an error with the server's message if it fails.
export function postForm(form, changes = {}, submitter = null) {
  const data = new FormData(form, submitter);
  for (const [name, value] of Object.entries(changes)) data.set(name, value);
  return postData(form.action, data);
}

// Same as `postForm`, for the fields of a form that may have left the page.
export async function postData(url, data) {
  const headers = { Accept: "application/json" };
  let response;
  try {
    response = await fetch(url, { method: "POST", body: data, headers, credentials: "same-origin" });
  } catch {
    throw new Error(gettext("Server unreachable. Not saved; try again."));
  }
  const result = await response.json().catch(() => ({}));
  if (response.ok) return result;
  const unknown = fill(gettext("Not saved: the server returned status {status}."), { status: response.status });
  throw Object.assign(new Error(result.message ?? unknown), { status: response.status, code: result.code });
}
