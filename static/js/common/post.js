// Sends a form with fetch.
import { fill, gettext } from "./i18n.js";

export const SIGNED_OUT = gettext("You are signed out. Sign in again in another tab; what you entered stays here.");

// Posts a form and returns the JSON response {message, …}; throws an error with the server's message if it fails.
export function postForm(form, changes = {}, submitter = null) {
  const data = new FormData(form, submitter);
  for (const [name, value] of Object.entries(changes)) data.set(name, value);
  return postData(form.action, data);
}

// The token of the session: the page has the one of before, if one has signed in again.
export const readToken = () => document.cookie.match(/(?:^|; )rolloutdeck_csrf=([^;]*)/)?.[1]
  ?? JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRFToken"];

// The token, and whose page it is: if another person has signed in meanwhile, the server refuses to save it as theirs.
export const buildHeaders = () => ({ "X-CSRFToken": readToken(), "X-Rolloutdeck-User": document.body.dataset.user ?? "" });

// Whether an answer with `json` is that of the sign-in page, or of a session that ended or became another person's.
const SIGNED_OUT_CODES = ["session_expired", "other_user"];
export const isSignedOut = (response, json) => response.redirected || SIGNED_OUT_CODES.includes(json?.code);

// Same as `postForm`, for the fields of a form that may have left the page.
export async function postData(url, data, signal) {
  for (const name of ["csrfmiddlewaretoken", "page_user"]) data.delete(name); // both are in the headers
  const headers = { Accept: "application/json", ...buildHeaders() };
  let response;
  try {
    response = await fetch(url, { method: "POST", body: data, headers, signal, credentials: "same-origin" });
  } catch {
    throw new Error(gettext("Server unreachable. Not saved; try again."));
  }
  const result = await response.json().catch(() => ({}));
  if (isSignedOut(response, result)) throw Object.assign(new Error(SIGNED_OUT), { status: 401 });
  if (response.ok) return result;
  const unknown = fill(gettext("Not saved: the server returned status {status}."), { status: response.status });
  throw Object.assign(new Error(result.message ?? unknown), { status: response.status, code: result.code });
}
