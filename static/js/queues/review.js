// Answers items of a review queue. The next item is loaded while one reads, so it opens at once; answers are saved in the background.
import { buildQuote } from "../findings/quote.js";
import { fill, gettext } from "../common/i18n.js";
import { postData, postForm } from "../common/post.js";
import { MESSAGE_OF_ERROR, showMessage } from "../common/ui.js";

const DRAFT_DELAY = 900; // ms after the last change
const RETRY_DELAYS = [1000, 2000, 5000, 10000]; // ms
const page = document.getElementById("queue-review");
const panel = document.getElementById("item");
const saving = new Map(); // item -> promise of its answers
let ahead = null; // {after, html}: the next item, a promise
let openedAt = performance.now();
let draftTimer = 0;

const article = () => panel.querySelector("article[data-item]");
const form = () => panel.querySelector("form[data-answers]");
const questions = () => [...panel.querySelectorAll(".question")];

async function requestItem(query) {
  const headers = { "HX-Request": "true", "HX-Target": "item" };
  const response = await fetch(`${page.dataset.url}?${query}`, { headers, cache: "no-store", credentials: "same-origin" });
  if (response.ok && !response.redirected) return response.text();
  throw new Error(fill(gettext("The server returned status {status}."), { status: response.status }));
}

// --- one item ---------------------------------------------------------------------------------------------------------

function showItem(html) {
  panel.innerHTML = html;
  openedAt = performance.now();
  ahead = null;
  focusQuestion(questions().find((question) => !hasAnswer(question)) ?? questions()[0]);
  panel.querySelector(".queue-texts")?.scrollTo(0, 0);
  document.dispatchEvent(new CustomEvent("deck:settled", { detail: { panel } }));
  preload();
}

// The next item is reserved and loaded while this one is read.
function preload() {
  const position = article()?.dataset.position;
  if (position === undefined) return;
  const request = requestItem(`after=${position}`);
  request.catch(() => {});
  ahead = { after: position, html: request };
}

async function openNext() {
  const expected = ahead?.after === article()?.dataset.position ? ahead.html : null;
  article()?.setAttribute("aria-busy", "true");
  try {
    let html = await (expected ?? requestItem(`after=${article()?.dataset.position ?? 0}`));
    if (html.includes("data-queue-done")) {
      await Promise.allSettled(saving.values()); // what is being saved counts in the summary
      html = await requestItem("");
    }
    showItem(html);
  } catch (error) {
    article()?.removeAttribute("aria-busy");
    showMessage(error.message, MESSAGE_OF_ERROR);
  }
}

async function openItem(item) {
  try {
    showItem(await requestItem(`item=${item}`));
  } catch (error) {
    showMessage(error.message, MESSAGE_OF_ERROR);
  }
}

// --- questions --------------------------------------------------------------------------------------------------------

const fieldsOf = (question) => [...question.querySelectorAll("input:not([type=hidden]), textarea")];
const isFilled = (field) => (/radio|checkbox/.test(field.type) ? field.checked : field.value.trim());
const hasAnswer = (question) => fieldsOf(question).some(isFilled);
const currentQuestion = () => panel.querySelector(".question:focus-within") ?? panel.querySelector(".question.current");

function focusQuestion(question) {
  for (const other of questions()) other.classList.toggle("current", other === question);
  const fields = question ? fieldsOf(question) : [];
  (fields.find((field) => field.checked) ?? fields[0])?.focus({ preventScroll: true });
  question?.scrollIntoView({ block: "nearest" });
}

function nextQuestion(question) {
  const all = questions();
  return all.slice(all.indexOf(question) + 1).find((other) => !hasAnswer(other));
}

// A digit answers the question in focus. A single choice moves on to the next question without an answer.
function chooseOption(digit) {
  const question = currentQuestion() ?? questions()[0];
  const option = question && [...question.querySelectorAll(".choice")].find((label) => label.querySelector("kbd")?.textContent === digit);
  if (!option) return false;
  option.querySelector("input").click();
  if (question.dataset.kind !== "choices") focusQuestion(nextQuestion(question) ?? question);
  return true;
}

function findMissing() {
  if (form().elements.cannot_judge?.checked) return null;
  const missing = questions().find((question) => question.hasAttribute("data-required") && !hasAnswer(question));
  for (const question of questions()) question.classList.toggle("missing", question === missing);
  if (missing) return missing;
  return questions().length && !questions().some(hasAnswer) ? questions()[0] : null;
}

function showError(message) {
  const line = panel.querySelector("[data-answer-error]");
  if (line) Object.assign(line, { textContent: message, hidden: !message });
}

// --- saving -----------------------------------------------------------------------------------------------------------

function submit() {
  clearTimeout(draftTimer);
  if (order && !order.isComplete()) return showError(gettext("Give every response a place."));
  const missing = order ? null : findMissing();
  if (missing) {
    focusQuestion(missing);
    return showError(gettext("Answer this question first, or press 0 if you cannot judge."));
  }
  const item = article().dataset.item;
  const sent = form();
  sent.elements.seconds.value = ((performance.now() - openedAt) / 1000).toFixed(1);
  saving.set(item, save(sent.action, new FormData(sent), item));
  openNext();
}

// Tries again until the server answers. An answer that the server refuses opens the item again.
async function save(url, data, item) {
  for (let failures = 0; ; failures++) {
    try {
      await postData(url, data);
      break;
    } catch (error) {
      if (error.status && error.status < 500) {
        showMessage(error.message, MESSAGE_OF_ERROR);
        saving.delete(item);
        await openItem(item);
        return showError(error.message);
      }
      showUnsaved(item);
      await new Promise((resolve) => setTimeout(resolve, RETRY_DELAYS[Math.min(failures, RETRY_DELAYS.length - 1)]));
    }
  }
  saving.delete(item);
  unsaved.delete(item);
  drawUnsaved();
}

const unsaved = new Set();
function showUnsaved(item) {
  unsaved.add(item);
  drawUnsaved();
}
function drawUnsaved() {
  const banner = document.getElementById("unsaved-answers");
  banner.hidden = !unsaved.size;
  const text = gettext("{count} answered items are not saved yet. Trying again; keep this page open.");
  banner.textContent = fill(text, { count: unsaved.size });
}
window.addEventListener("beforeunload", (event) => {
  if (unsaved.size) event.preventDefault();
});

function saveDraft() {
  const sent = form();
  if (!sent || order) return;
  postForm(sent, { draft: "1" }).catch(() => {}); // the answers themselves are saved with Enter
}

// --- putting responses in order ---------------------------------------------------------------------------------------

class Order {
  constructor() {
    this.places = []; // lists of numbers, best first
    this.numbers = [...panel.querySelectorAll("[data-response]")].map((card) => card.dataset.response);
    this.joins = false; // the next number gets the place of the last one
    this.draw();
  }
  isComplete = () => this.places.flat().length === this.numbers.length;
  place(number) {
    if (this.places.flat().includes(number)) return;
    if (this.joins && this.places.length) this.places.at(-1).push(number);
    else this.places.push([number]);
    this.joins = false;
    const left = this.numbers.filter((other) => !this.places.flat().includes(other));
    if (left.length === 1 && this.places.length) this.places.push(left);
    this.draw();
  }
  takeBack() {
    this.places.at(-1)?.pop();
    this.places = this.places.filter((place) => place.length);
    this.joins = false;
    this.draw();
  }
  join() {
    this.joins = this.places.length > 0;
    this.draw();
  }
  draw() {
    const text = this.places.map((place) => place.join(" = ")).join("  >  ");
    panel.querySelector("#order").textContent = `${text}${this.joins ? " =" : ""}` || "–";
    for (const number of this.numbers) {
      const at = this.places.findIndex((place) => place.includes(number));
      const badge = panel.querySelector(`[data-place-of="${number}"]`);
      Object.assign(badge, { hidden: at < 0, textContent: at < 0 ? "" : at + 1 });
      badge.closest(".order-card").classList.toggle("placed", at >= 0);
      panel.querySelector(`[name="place.${number}"]`).value = at < 0 ? "" : at + 1;
    }
  }
}
let order = null;
const startOrder = () => (order = panel.querySelector(".order-grid") ? new Order() : null);
document.addEventListener("deck:settled", ({ detail }) => detail.panel === panel && startOrder());

// --- listening --------------------------------------------------------------------------------------------------------

document.addEventListener("submit", async (event) => {
  const sent = event.target;
  if (!panel.contains(sent)) return;
  event.preventDefault();
  if (sent.matches("[data-answers]")) return submit();
  clearTimeout(draftTimer);
  try {
    if (sent.matches("[data-undo]")) await Promise.allSettled(saving.values());
    const result = await postForm(sent);
    showMessage(result.message);
    if (result.item) await openItem(result.item);
    else await openNext();
  } catch (error) {
    showMessage(error.message, MESSAGE_OF_ERROR);
  }
});

panel.addEventListener("click", ({ target }) => {
  const place = target.closest("[data-place]");
  if (place) order?.place(place.dataset.place);
  if (target.closest("[data-guidelines]")) document.getElementById("guidelines")?.showModal();
  const mark = target.closest("[data-mark-range]");
  if (mark) markRange(mark.closest(".question"));
});

panel.addEventListener("input", () => {
  showError("");
  clearTimeout(draftTimer);
  draftTimer = setTimeout(saveDraft, DRAFT_DELAY);
});
panel.addEventListener("focusin", ({ target }) => {
  const question = target.closest(".question");
  if (question) for (const other of questions()) other.classList.toggle("current", other === question);
});

// Runs before the shortcuts, whose Enter would press the focused button.
document.addEventListener(
  "keydown",
  (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !article()) return;
    const isTyping = event.target.matches("textarea, input:not([type=radio], [type=checkbox])");
    if (event.key === "Enter" && event.shiftKey) return; // a new line in a text
    let used = false;
    if (event.key === "Enter" && (isTyping || event.target.matches("input"))) used = (submit(), true);
    else if (!isTyping && /^[1-9]$/.test(event.key) && !order) used = chooseOption(event.key);
    else if (!isTyping && order && event.key === "=") used = (order.join(), true);
    else if (!isTyping && order && event.key === "Backspace") used = (order.takeBack(), true);
    if (!used) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  },
  true,
);

let selection = null; // the last selection in the response: a click on the button clears it
document.addEventListener("selectionchange", () => {
  const range = getSelection().rangeCount && getSelection().getRangeAt(0);
  const text = range && !range.collapsed && range.commonAncestorContainer.parentElement?.closest("[data-text]");
  if (text && panel.contains(text)) selection = buildQuote({ text, selected: range });
});
function markRange(question) {
  if (!selection?.text) return showMessage(gettext("Select a part of the response first."));
  const [start, end] = [selection.near, selection.near + selection.text.length];
  const name = question.dataset.question;
  form().elements[`q.${name}.start`].value = start;
  form().elements[`q.${name}.end`].value = end;
  question.querySelector("[data-range]").textContent = selection.text.slice(0, 80);
  saveDraft();
}

startOrder();
focusQuestion(questions().find((question) => !hasAnswer(question)) ?? questions()[0]);
preload();
