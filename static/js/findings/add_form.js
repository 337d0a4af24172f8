// The dialog that adds the current view to a finding. The server renders its form. The quote is the selected text.
import { MESSAGE_OF_ERROR, showMessage, showRequestError, writeMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { dropKeys } from "../common/key_queue.js";
import { requestPanel } from "../common/panel.js";
import { postForm } from "../common/post.js";

let sending = null; // the form that is sent: once, and its answer does not close a later one
const ariaLabel = gettext("Add to a finding");
const box = Object.assign(document.createElement("dialog"), { id: "adding", className: "adding", ariaLabel });
document.body.append(box);

// The form's URL with the query and step of the page, or the chart under the mouse.
function formUrl(href) {
  const url = new URL(href, location.href);
  const here = new URLSearchParams(location.search);
  const page = document.getElementById("step-page");
  const shown = () => document.querySelector("#samples[data-step], #found[data-step]")?.dataset.step;
  const step = page && (page.dataset.word === "all" ? "all" : shown() || page.dataset.step);
  if (step) url.searchParams.set("step", step);
  const copied = page ? ["split", "q", "sort", "attempt"] : ["runs", "attempt"];
  for (const name of copied) if (here.get(name)) url.searchParams.set(name, here.get(name));
  const chart = document.querySelector(".chart:hover") ?? document.activeElement?.closest(".chart")
    ?? document.querySelector("#large:not([hidden]) .chart");
  const names = url.searchParams.has("charts") ? chart?.dataset.names?.split("\n") ?? [] : [];
  for (const name of names) url.searchParams.append("names", name);
  return url.pathname + url.search;
}

export async function openAddForm(href, selection) {
  try {
    box.innerHTML = (await requestPanel(box, formUrl(href))) ?? "";
  } catch (error) {
    dropKeys(); // they were meant for the dialog
    if (error.status === 403) return showMessage(gettext("You need the annotator role to add to a finding."));
    return showRequestError(error, gettext("Could not open the dialog. Server unreachable."));
  }
  addQuote(selection);
  const to = box.querySelector("#add-to");
  if (!box.open) box.showModal();
  (to?.value ? box.querySelector("#add-words, #add-names") : box.querySelector("#add-title"))?.focus();
}

function addQuote({ text, near }) {
  const list = box.querySelector("[data-quotes]");
  if (!list || !text.trim()) return;
  const quote = Object.assign(document.createElement("blockquote"), { className: "quote-of", textContent: text });
  const field = Object.assign(document.createElement("input"), { type: "hidden", name: "quote", value: text });
  const position = Object.assign(document.createElement("input"), { type: "hidden", name: "near", value: near });
  list.append(quote, field, position);
}

box.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target, isShown = () => box.open && form.isConnected;
  if (sending === form) return; // a second one would create a second finding
  sending = form;
  const message = box.querySelector("[data-message]");
  message.textContent = "";
  try {
    const result = await postForm(form, {}, event.submitter);
    if (isShown()) box.close();
    showMessage(result.message);
  } catch (error) {
    if (isShown()) writeMessage(message, error.message);
    else showMessage(error.message, MESSAGE_OF_ERROR);
  } finally {
    if (sending === form) sending = null;
  }
});

// Enter in a text field starts a new line. Ctrl+Enter sends the form.
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.repeat && (event.ctrlKey || event.metaKey)) box.querySelector("form").requestSubmit();
});

// A click outside closes the dialog, but not if something was typed, or if it began inside: a selection may end outside.
let beganOutside = false;

function isOutside({ target, clientX: x, clientY: y }) {
  const { left, right, top, bottom } = box.getBoundingClientRect();
  return target === box && (x < left || x > right || y < top || y > bottom);
}

const isChanged = (field) =>
  /^(checkbox|radio)$/.test(field.type) ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;

box.addEventListener("pointerdown", (event) => (beganOutside = isOutside(event)));
box.addEventListener("click", (event) => {
  const closes = beganOutside && isOutside(event) && ![...box.querySelectorAll("input, textarea")].some(isChanged);
  if (closes || event.target.closest("[data-add-close]")) box.close();
});
