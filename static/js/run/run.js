// The run page: links keep parameters that scripts have written into the URL. The list of other runs loads when it opens.
import { showRequestError } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { dropKeys, holdKeys } from "../common/key_queue.js";
import { announceSettled, buildUrl, requestPanel } from "../common/panel.js";

const over = document.getElementById("over");
const list = document.getElementById("overlay");

// The next keys are for the search of the list, also while the list loads.
over?.querySelector("summary").addEventListener("click", (event) => {
  if (over.open) return;
  event.preventDefault();
  over.open = true;
  holdKeys(focusSearch());
});

async function focusSearch() {
  try {
    if (!list.dataset.read) {
      const [html] = await Promise.all([requestPanel(list, location.href), import("../common/popover.js")]); // popover.js filters the list
      list.innerHTML = html ?? "";
      list.dataset.read = "true";
      announceSettled(list);
    }
    list.querySelector("input")?.focus();
  } catch (error) {
    dropKeys();
    over.open = false;
    showRequestError(error, gettext("Could not load the runs. Server unreachable."));
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-set]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const split = (pair) => [pair.split("=")[0], decodeURIComponent(pair.slice(pair.indexOf("=") + 1))];
  location.assign(buildUrl(Object.fromEntries(link.dataset.set.split("&").map(split))));
});
