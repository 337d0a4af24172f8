// The overview's links keep what the script has written into the address meanwhile; the list of other runs is read when it opens.
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { address, ask, settled } from "../common/panel.js";

document.getElementById("over")?.addEventListener("toggle", async (event) => {
  const list = document.getElementById("overlay");
  if (!event.target.open || list.dataset.read) return;
  list.dataset.read = "true";
  try {
    const [html] = await Promise.all([ask(list, location.href), import("../common/popover.js")]); // what makes its field work comes with it
    list.innerHTML = html ?? "";
    settled(list);
  } catch {
    delete list.dataset.read;
    say(gettext("The runs could not be read; the server does not answer."));
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-set]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const told = Object.fromEntries(link.dataset.set.split("&").map((pair) => [pair.split("=")[0], decodeURIComponent(pair.slice(pair.indexOf("=") + 1))]));
  location.assign(address(told));
});
