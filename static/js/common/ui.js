// Relative times, clipboard, messages, help dialog, progress bar.
import { fill, gettext } from "./i18n.js";
import { dropKeys } from "./key_queue.js";
import { PanelError, announceSignedOut, checkAnswer, countRequests } from "./panel.js";
import { SIGNED_OUT, buildHeaders, readToken } from "./post.js";

const UNITS = [
  [60, 1, gettext("{n} s ago")],
  [3600, 60, gettext("{n} min ago")],
  [86400, 3600, gettext("{n} h ago")],
  [Infinity, 86400, gettext("{n} d ago")],
];

function formatAge(moment) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(moment)) / 1000));
  const [, size, text] = UNITS.find(([limit]) => seconds < limit);
  return fill(text, { n: Math.floor(seconds / size) });
}

function updateAges(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const text = formatAge(time.dateTime);
    if (time.textContent !== text) time.textContent = text;
  }
}

updateAges();
setInterval(() => document.hidden || updateAges(), 5000);
document.addEventListener("deck:settled", (event) => updateAges(event.detail.panel));
document.addEventListener("htmx:afterSettle", () => updateAges());
document.addEventListener("htmx:beforeSend", ({ detail: { xhr } }) => {
  countRequests(1);
  xhr.addEventListener("loadend", () => countRequests(-1));
});
document.addEventListener("htmx:sendError", ({ detail }) => {
  const isRead = detail.requestConfig?.verb === "get";
  const text = isRead ? gettext("Server unreachable.") : gettext("Server unreachable. Not saved; try again.");
  showMessage(text, MESSAGE_OF_ERROR);
  stopSearch(detail.elt);
});
document.addEventListener("htmx:responseError", ({ detail: { elt, xhr } }) => {
  showMessage(fill(gettext("The server returned status {status}."), xhr), MESSAGE_OF_ERROR);
  stopSearch(elt);
});
// A search in parts that ends early says so. Its button requests the same part again.
function stopSearch(part) {
  if (!part.matches(".searching")) return;
  const fresh = part.cloneNode(true);
  const button = { type: "button", className: "plain small", textContent: gettext("Try now") };
  const again = Object.assign(document.createElement("button"), button);
  again.addEventListener("click", () => (part.replaceWith(fresh), window.htmx.process(fresh)));
  part.querySelector("button")?.replaceWith(`· ${gettext("stopped")} `, again);
}
// The session ended, and the answer is the sign-in page.
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  const pathOf = (url) => new URL(url, location.href).pathname;
  const { pathInfo: { finalRequestPath, responsePath }, requestConfig } = detail;
  if (!responsePath || pathOf(responsePath) === pathOf(finalRequestPath)) return;
  detail.shouldSwap = false;
  if (requestConfig.verb === "get") announceSignedOut();
  else showMessage(SIGNED_OUT, MESSAGE_OF_ERROR);
});

// The page has the token of its session. After signing in again in another tab its forms need the new one. They say whose page
// it is: the server refuses them if another person has signed in.
document.addEventListener("htmx:configRequest", ({ detail }) => {
  Object.assign(detail.headers, buildHeaders());
  delete detail.parameters.page_user; // it would be in the address of a GET
});
document.addEventListener("submit", ({ target }) => {
  const token = target.elements.namedItem("csrfmiddlewaretoken");
  if (!token) return;
  token.value = readToken();
}, true);
document.addEventListener("formdata", ({ formData }) => {
  const { user } = document.body.dataset;
  if (user && formData.has("csrfmiddlewaretoken")) formData.set("page_user", user);
}, true);

// A reload shows the sign-in page. It waits while the page has something that is not saved. Without a socket in between it is
// not repeated: a proxy may refuse the socket of a page that it shows.
const RELOADED = "reloaded after sign-out";
let isTold = false;
document.addEventListener("deck:signed-out", () => {
  if (!hasUnsaved() && !sessionStorage.getItem(RELOADED)) {
    sessionStorage.setItem(RELOADED, "yes");
    return location.reload();
  }
  if (!isTold) showMessage(SIGNED_OUT, MESSAGE_OF_ERROR);
  isTold = true;
});
document.addEventListener("deck:connected", () => {
  sessionStorage.removeItem(RELOADED);
  isTold = false;
});

// Other scripts say whether they keep texts that were typed and are in no field.
const draftChecks = [];
export const reportDrafts = (hasDrafts) => draftChecks.push(hasDrafts);

// Whether a reload would lose what the user has typed or chosen. A query is in the URL, and what narrows a list is typed again.
function hasUnsaved() {
  if (draftChecks.some((hasDrafts) => hasDrafts())) return true;
  const fields = document.querySelectorAll("textarea, input:not([type=hidden], [type=search], [type=range], [role=combobox])");
  const isChosen = (field) => field.checked !== field.defaultChecked && field.form?.method === "post";
  const isEdited = (field) => (/^(checkbox|radio)$/.test(field.type) ? isChosen(field) : field.value !== field.defaultValue);
  return [...fields].some(isEdited);
}

// A message of the server, with the text between backticks as code.
export function writeMessage(element, text) {
  const parts = text.split("`");
  const isPair = (at) => at % 2 === 1 && at < parts.length - 1;
  const build = (part, at) => (isPair(at) ? Object.assign(document.createElement("code"), { textContent: part }) : part);
  element.replaceChildren(...parts.map(build));
}

export const MESSAGE_OF_ERROR = 6000; // ms
let fading;
export function showMessage(text, time = 1600) {
  document.querySelector(".toast:not(#unsaved, #going)")?.remove();
  const toast = Object.assign(document.createElement("p"), { className: "toast" });
  writeMessage(toast, text);
  toast.setAttribute("role", "status");
  document.body.append(toast);
  clearTimeout(fading);
  fading = setTimeout(() => toast.remove(), time);
}

// Says why a panel could not be requested: what the server answered, or `unreachable` if it did not answer.
export const showRequestError = (error, unreachable) =>
  showMessage(error instanceof PanelError ? error.message : unreachable, MESSAGE_OF_ERROR);

// A script that is loaded on its first use does not arrive: the server is away, or has another version than the page.
const NO_SCRIPT = /dynamically imported module|importing a module|module script failed|export named/i;
export const MISSING_PART = gettext("A part of this page could not be loaded. Reload the page when the server is there.");
export function reportMissingPart() {
  dropKeys(); // they are for what is missing
  showMessage(MISSING_PART, MESSAGE_OF_ERROR);
}
window.addEventListener("unhandledrejection", ({ reason }) => NO_SCRIPT.test(reason?.message) && reportMissingPart());

// The answer to a form shows a secret once. A reload opens its page instead of sending the form again.
const secret = document.querySelector(".secret[data-page]");
if (secret) history.replaceState(history.state, "", secret.dataset.page);

document.addEventListener("deck:late", ({ detail }) => {
  showMessage(fill(gettext("Not used, since the page was not ready: {keys}"), { keys: detail.join(" ") }), MESSAGE_OF_ERROR);
});

// Copies a text and says so, or that the browser has refused it.
export async function copyText(text, done = gettext("Copied")) {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else if (!copyOld(text)) throw new Error("execCommand");
    showMessage(done);
  } catch {
    showMessage(gettext("Could not copy: the browser does not allow it."), MESSAGE_OF_ERROR);
  }
}

export async function copyFrom(url) {
  try {
    const response = await fetch(url, { credentials: "same-origin" });
    checkAnswer(response);
    await copyText(await response.text());
  } catch (error) {
    showRequestError(error, gettext("Could not copy. Server unreachable."));
  }
}

// The clipboard API does not exist on plain HTTP from another machine. Returns whether the text was copied.
function copyOld(text) {
  const focused = document.activeElement;
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden" });
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus({ preventScroll: true });
  return isCopied;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copyText(button.closest(".copyable").querySelector("pre").textContent);
});

document.querySelector("[data-help]")?.addEventListener("click", () => document.getElementById("help").showModal());

// Scripts change the URL after the page load, so the form returns to the current one.
document.querySelector("[data-language-switch]")?.addEventListener("submit", (event) => {
  event.target.elements.next.value = location.pathname + location.search + location.hash;
});
