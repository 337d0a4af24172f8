// The run page: links keep parameters that scripts have written into the URL. The list of other runs loads when it opens.
import { showMessage } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { announceSettled, buildUrl, requestPanel } from "../common/panel.js";

document.getElementById("over")?.addEventListener("toggle", async (event) => {
  const list = document.getElementById("overlay");
  if (!event.target.open || list.dataset.read) return;
  list.dataset.read = "true";
  try {
    const [html] = await Promise.all([requestPanel(list, location.href), import("../common/popover.js")]); // popover.js filters the list
    list.innerHTML = html ?? "";
    announceSettled(list);
  } catch {
    delete list.dataset.read;
    showMessage(gettext("Could not load the runs. Server unreachable."));
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-set]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const split = (pair) => [pair.split("=")[0], decodeURIComponent(pair.slice(pair.indexOf("=") + 1))];
  location.assign(buildUrl(Object.fromEntries(link.dataset.set.split("&").map(split))));
});
