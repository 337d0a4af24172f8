// Answers items of a review queue. The next item is loaded while one reads, so it opens at once; answers are saved in the background.
import { announceSettled } from "../common/panel.js";
import { buildQuote } from "../findings/quote.js";
import { fill, gettext } from "../common/i18n.js";
import { dropKeys, holdKeys } from "../common/key_queue.js";
import { isIgnored, isTurnedOff } from "../common/keyboard_layout.js";
import { SIGNED_OUT, postData, postForm, readToken } from "../common/post.js";
import { MESSAGE_OF_ERROR, showMessage } from "../common/ui.js";
import { Order } from "./order.js";
import { Pairs } from "./pairs.js";
import { isSaving, listSaving, replaceAnswers, saveAnswers, waitForSaving } from "./saving.js";

const DRAFT_DELAY = 900, DRAFT_TIMEOUT = 30000; // ms; the delay after the last change
const SLOT_TAKEN = "slot_taken"; // the codes of answers that the server keeps as a draft
const QUEUE_CLOSED = "queue_closed";
const OUTDATED = "outdated"; // the responses of the group have changed: not even a draft is kept
const PAIR_KEYS = { ArrowLeft: "1", ArrowRight: "2" };
const page = document.getElementById("queue-review");
const panel = document.getElementById("item");
let ahead = null; // {after, html}: the next item, a promise
let openedAt = performance.now();
let draftTimer = 0;
let draft = null; // the last one, a promise
let isEdited = false; // since the item was opened or its answers were last sent
let opening = null; // of the next item, a promise
let order = null; // of the responses of a group
let pairs = null; // of them
let progress = ""; // after the last answer: an item that was loaded before has an older one
let selection = null; // the last one in the response, { text, selected }: a click on the button clears it

const article = () => panel.querySelector("article[data-item]");
const form = () => panel.querySelector("form[data-answers]");
const questions = () => [...panel.querySelectorAll(".question")];

async function requestItem(query) {
  const headers = { "HX-Request": "true", "HX-Target": "item" };
  const response = await fetch(`${page.dataset.url}?${query}`, { headers, cache: "no-store", credentials: "same-origin" });
  if (response.ok && !response.redirected) return response.text();
  if (response.redirected) throw new Error(SIGNED_OUT);
  throw new Error(fill(gettext("The server returned status {status}."), { status: response.status }));
}

// --- one item ---------------------------------------------------------------------------------------------------------

function showItem(html) {
  panel.innerHTML = html;
  startComparing();
  openedAt = performance.now();
  ahead = selection = null;
  isEdited = false;
  focusQuestion(questions().find((question) => !hasAnswer(question)) ?? questions()[0]);
  panel.querySelector(".queue-texts")?.scrollTo(0, 0);
  announceSettled(panel);
  preload();
}

function startComparing() {
  order = panel.querySelector(".order-grid") ? new Order(panel, () => { showError(""); scheduleDraft(); }) : null;
  pairs = panel.querySelector(".pair-grid") ? new Pairs(panel) : null;
}

// Items whose answers are on their way are not offered again.
const buildNextQuery = (position) => new URLSearchParams([["after", position], ...listSaving().map((item) => ["left", item])]);

// The next item is reserved and loaded while this one is read.
function preload() {
  const position = article()?.dataset.position;
  if (position === undefined) return;
  const request = requestItem(buildNextQuery(position));
  request.catch(() => {});
  ahead = { after: position, html: request };
}

// Keys wait until the next item is there: they would answer the one before. `opening` ends before they are used, else Enter
// would not count.
function openNext() {
  opening ??= holdKeys(showNext().finally(() => (opening = null)), () => false);
  return opening;
}

async function showNext() {
  const left = article();
  const position = left?.dataset.position;
  const expected = ahead && ahead.after === position ? ahead.html : null;
  ahead = null; // if it failed, the next try asks again
  left?.setAttribute("aria-busy", "true");
  try {
    let html = await (expected ?? requestItem(left ? buildNextQuery(position) : ""));
    if (html.includes("data-queue-done")) {
      await waitForSaving(); // what is being saved counts in the summary
      html = await requestItem("");
      progress = "";
    }
    showItem(html);
    showProgress(progress);
  } catch (error) {
    left?.removeAttribute("aria-busy");
    showMessage(error.message, MESSAGE_OF_ERROR);
  }
}

function showProgress(text) {
  progress = text;
  const line = panel.querySelector(".queue-head [role=status]");
  if (line && text) line.textContent = text;
}

async function openItem(item) {
  try {
    showItem(await requestItem(`item=${item}`));
    progress = "";
  } catch (error) {
    showMessage(error.message, MESSAGE_OF_ERROR);
  }
}

// --- questions --------------------------------------------------------------------------------------------------------

const fieldsOf = (question) => [...question.querySelectorAll("input:not([type=hidden]), textarea")];
const isFilled = (field) => (/radio|checkbox/.test(field.type) ? field.checked : field.value.trim());
const hasAnswer = (question) => fieldsOf(question).some(isFilled);
const currentQuestion = () => panel.querySelector(".question:focus-within") ?? panel.querySelector(".question.current");

function markCurrent(question) {
  for (const other of questions()) other.classList.toggle("current", other === question);
  pairs?.show();
}

function focusQuestion(question) {
  markCurrent(question);
  const fields = question ? fieldsOf(question) : [];
  (fields.find((field) => field.checked) ?? fields[0])?.focus({ preventScroll: true });
  question?.scrollIntoView({ block: "nearest" });
}

function nextQuestion(question) {
  const all = questions();
  return all.slice(all.indexOf(question) + 1).find((other) => !hasAnswer(other));
}

function focusPreviousPair() {
  const all = questions();
  focusQuestion(all[Math.max(0, all.indexOf(currentQuestion()) - 1)]);
}

// A digit answers the question in focus. A single choice moves on to the next question without an answer.
function chooseOption(key) {
  const question = currentQuestion() ?? questions()[0];
  const option = question && [...question.querySelectorAll(".choice")].find((label) => label.querySelector("kbd")?.textContent === key);
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

// The fields of the form. An unchecked correction is the text of the response, which may be too large for a server that stores
// none of it.
function readFields(sent) {
  const data = new FormData(sent);
  if (!data.has("has_correction")) data.delete("correction");
  return data;
}

function submit() {
  if (opening) return;
  clearTimeout(draftTimer);
  draftTimer = 0;
  if (order && !order.isComplete()) return showError(gettext("Give every response a place."));
  const missing = order ? null : findMissing();
  if (missing) {
    focusQuestion(missing);
    return showError(matchMedia("(pointer: coarse)").matches
      ? gettext("Answer this question first, or tick “Cannot judge”.")
      : gettext("Answer this question first, or press 0 if you cannot judge."));
  }
  if (!order && !form().reportValidity()) return; // a number outside of its range
  const item = article().dataset.item;
  const sent = form();
  sent.elements.seconds.value = ((performance.now() - openedAt) / 1000).toFixed(1);
  const data = readFields(sent);
  isEdited = false;
  // If the server was unreachable, the item is still open while its answers wait.
  if (isSaving(item)) replaceAnswers(item, data, draft);
  else saveAnswers(item, sent.action, data, draft).then((result) => finishSaving(item, result));
  openNext();
}

// An answer that the server refuses opens the item again. One that was sent in vain at first moves on when it is saved, unless
// the person is changing it.
async function finishSaving(item, { error, result }) {
  if (!error) {
    showProgress(result.progress);
    if (article()?.dataset.item === item && !opening && !isEdited) openNext();
    return;
  }
  if (error.code === QUEUE_CLOSED) return showClosed();
  showMessage(error.message, MESSAGE_OF_ERROR);
  if (error.code === SLOT_TAKEN) return;
  await opening; // else the next item would replace this one
  panel.inert = true; // what is entered now would be lost with the item that is open
  await holdKeys(reopen(item), () => false);
  panel.inert = false;
  showError(error.message);
}

// Drops the keys of the meantime: they are for the item before.
async function reopen(item) {
  if (isEdited) await saveDraft();
  await openItem(item);
  dropKeys();
}

// The queue was closed while one reviewed.
async function showClosed() {
  if (draftTimer) await saveDraft();
  await waitForSaving();
  showItem(await requestItem(""));
  progress = "";
}

function saveDraft() {
  clearTimeout(draftTimer);
  draftTimer = 0;
  const sent = form();
  if (!sent) return null;
  const data = readFields(sent);
  data.set("draft", "1");
  const signal = AbortSignal.timeout(DRAFT_TIMEOUT);
  draft = postData(sent.action, data, signal).catch((error) => {
    // Enter sends everything again. Only if that would be refused too, the person must know it now.
    if (error.code === OUTDATED && form() === sent) showError(error.message);
  });
  return draft;
}

function scheduleDraft(delay = DRAFT_DELAY) {
  isEdited = true;
  clearTimeout(draftTimer);
  draftTimer = setTimeout(saveDraft, delay);
}

// The page is left within a moment after a change.
window.addEventListener("pagehide", () => {
  const sent = form();
  if (!draftTimer || !sent) return;
  const data = readFields(sent);
  data.set("draft", "1");
  data.set("csrfmiddlewaretoken", readToken());
  navigator.sendBeacon(sent.action, data);
});

// --- listening --------------------------------------------------------------------------------------------------------

document.addEventListener("submit", (event) => {
  const sent = event.target;
  if (!panel.contains(sent)) return;
  event.preventDefault();
  if (sent.matches("[data-answers]")) return submit();
  holdKeys(skipOrUndo(sent), () => false); // they would answer the item that is left
});

async function skipOrUndo(sent) {
  if (isEdited) saveDraft(); // of the item that is left
  try {
    await waitForSaving(); // else an older progress comes later
    await draft;
    const result = await postForm(sent);
    showMessage(result.message);
    if (result.item) return await openItem(result.item); // with its progress: both change at once
    if (result.progress) showProgress(result.progress);
    await openNext();
  } catch (error) {
    if (error.code === QUEUE_CLOSED) return showClosed();
    showMessage(error.message, MESSAGE_OF_ERROR);
  }
}

panel.addEventListener("click", ({ target }) => {
  const place = target.closest("[data-place]");
  if (place) order?.place(place.dataset.place);
  if (target.closest("[data-take-back]")) order?.takeBack();
  if (target.closest("[data-join]")) order?.join();
  if (target.closest("[data-previous-pair]")) focusPreviousPair();
  if (target.closest("[data-guidelines]")) document.getElementById("guidelines")?.showModal();
  const mark = target.closest("[data-mark-range]");
  if (mark) markRange(mark.closest(".question"));
});

panel.addEventListener("input", ({ target }) => {
  showError("");
  scheduleDraft();
  if (target.name === "correction") form().elements.has_correction.checked = true;
  if (target.name === "cannot_judge" && target.checked) form().elements.cannot_judge_reason.focus();
});
panel.addEventListener("focusin", ({ target }) => {
  const question = target.closest(".question");
  if (question) markCurrent(question);
});

// Runs before the shortcuts, whose Enter would press the focused button. A key that is held answers one question only.
document.addEventListener(
  "keydown",
  (event) => {
    const isSent = event.key === "Enter" && (event.ctrlKey || event.metaKey); // from a text with several lines, too
    if (isIgnored(event) || isTurnedOff(event.key) || event.altKey || ((event.ctrlKey || event.metaKey) && !isSent)) return;
    if (document.querySelector("dialog[open]") || !article()) return;
    const isTyping = event.target.matches("textarea, input:not([type=radio], [type=checkbox])");
    if (event.key === "Enter" && !isSent && (event.shiftKey || event.target.name === "correction")) return; // a new line
    const choose = (key) => event.repeat || chooseOption(PAIR_KEYS[key] ?? key);
    let used = false;
    if (event.key === "Enter" && (isTyping || event.target.matches("input"))) used = (event.repeat || submit(), true);
    else if (!isTyping && pairs && event.key === "Backspace") used = (focusPreviousPair(), true);
    else if (!isTyping && pairs && /^[012=]$|^Arrow(Left|Right)$/.test(event.key)) used = choose(event.key);
    else if (!isTyping && /^[1-9]$/.test(event.key) && !order) used = choose(event.key);
    else if (!isTyping && order && event.key === "=") used = (order.join(), true);
    else if (!isTyping && order && event.key === "Backspace") used = (order.takeBack(), true);
    if (!used) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  },
  true,
);

document.addEventListener("selectionchange", () => {
  const range = getSelection().rangeCount && getSelection().getRangeAt(0);
  const node = range && !range.collapsed && range.commonAncestorContainer;
  const text = node && (node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement)?.closest("[data-text]");
  if (text && panel.contains(text)) selection = { text, selected: range.cloneRange() };
});
function markRange(question) {
  const quote = selection && buildQuote(selection);
  if (!quote?.text) return showMessage(gettext("Select a part of the response first."));
  const name = question.dataset.question;
  form().elements[`q.${name}.quote`].value = quote.text;
  form().elements[`q.${name}.near`].value = quote.near;
  question.querySelector("[data-range]").textContent = quote.text.slice(0, 80);
  scheduleDraft(0);
}

startComparing();
focusQuestion(questions().find((question) => !hasAnswer(question)) ?? questions()[0]);
preload();
