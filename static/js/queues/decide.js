// The agreement page: links open an item and forms decide it without a page load, during which a browser loses keys.
import { gettext } from "../common/i18n.js";
import { holdKeys } from "../common/key_queue.js";
import { isPlainClick, requestPanel, swapPanel } from "../common/panel.js";
import { postForm } from "../common/post.js";
import { showMessage, showRequestError } from "../common/ui.js";

const panel = document.getElementById("agreement");
const isNarrow = matchMedia("(max-width: 860px)");
let latest = 0, isSending = false;

async function load(href) {
  const request = ++latest;
  try {
    const html = await requestPanel(panel, href);
    if (html === null || request !== latest) return;
    history.replaceState(null, "", href);
    swapPanel(panel, html);
  } catch (error) {
    showRequestError(error, gettext("Could not load the item. Server unreachable."));
  }
}

// In a narrow window the item is below the list.
const showItem = () => isNarrow.matches && panel.querySelector(".decide-item")?.scrollIntoView();

async function decide(form, submitter) {
  if (isSending) return;
  isSending = true;
  try {
    const { message } = await postForm(form, {}, submitter);
    form.reset();
    showMessage(message);
    await load(form.elements.next.value);
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
