// The agreement page: links open an item and forms decide it without a page load, during which a browser loses keys.
import { gettext } from "../common/i18n.js";
import { holdKeys } from "../common/key_queue.js";
import { isPlainClick, requestPanel, swapPanel } from "../common/panel.js";
import { postForm } from "../common/post.js";
import { showMessage, showRequestError } from "../common/ui.js";

const panel = document.getElementById("agreement");
const isNarrow = matchMedia("(max-width: 860px)");
let latest = 0, isSending = false;

async function load(href, hadFocus = panel.contains(document.activeElement)) {
  const request = ++latest;
  try {
    const html = await requestPanel(panel, href);
    if (html === null || request !== latest) return;
    history.replaceState(null, "", href);
    swapPanel(panel, html);
    // The button that decided has gone: a screen reader goes on with the name of the next item.
    const link = panel.querySelector("#decide-list a[aria-current]");
    if (hadFocus && !panel.contains(document.activeElement)) link?.focus({ preventScroll: true });
  } catch (error) {
    showRequestError(error, gettext("Could not load the item. Server unreachable."));
  }
}

// The start of the item, also if one has read on. In a narrow window it is below the list.
function showItem() {
  const start = panel.querySelector(isNarrow.matches ? ".decide-item" : "#to-decide");
  if (start && (isNarrow.matches || start.getBoundingClientRect().top < 0)) start.scrollIntoView();
}

async function decide(form, submitter) {
  if (isSending) return;
  isSending = true;
  const hadFocus = panel.contains(document.activeElement);
  try {
    const { message } = await postForm(form, {}, submitter);
    form.reset();
    showMessage(message);
    await load(form.elements.next.value, hadFocus);
    showItem();
  } catch (error) {
    showRequestError(error, error.message);
    if (error.status === 400) await load(location.href); // another person may have decided it
  } finally {
    isSending = false;
  }
}

panel.addEventListener("click", async (event) => {
  const link = event.target.closest("a[href]");
  if (!link || link.pathname !== location.pathname || !isPlainClick(event)) return;
  event.preventDefault();
  const opensItem = link.closest("#decide-list, .decide-item"), isAbove = !link.closest("#to-decide");
  await holdKeys(load(link.href)); // the next keys are for the item that it opens
  if (opensItem) showItem();
  else if (isAbove && link.hash) document.querySelector(link.hash)?.scrollIntoView();
});
panel.addEventListener("submit", (event) => {
  event.preventDefault();
  holdKeys(decide(event.target, event.submitter));
});
