// Copies links: y to exactly this step and sample, Y to the latest step.
import { copyText } from "./ui.js";
import { gettext } from "./i18n.js";
import { buildUrl } from "./panel.js";

const absolute = (path) => new URL(path, location.href).href;

// The URL with the current number of the step in the path, or of the steps in `of=`.
function exactLink() {
  const row = document.querySelector("#rows tr[aria-selected]")?.dataset.id;
  const of = document.querySelector("[data-of]")?.dataset.of;
  const steps = { ...(row ? { sel: row } : {}), ...(of ? { of } : {}) };
  const at = document.querySelector("#found, .board-head")?.dataset.step;
  return absolute(buildUrl(steps, at ? location.href.replace(/\/(steps|groups)\/latest\//, `/$1/${at}/`) : location.href));
}

function latestLink() {
  const of = new URLSearchParams(location.search).get("of");
  const changes = of ? { of: of.replace(/@-?\d+/g, "@latest"), sel: "" } : { sel: "" };
  return absolute(buildUrl(changes, location.href.replace(/\/(steps|groups)\/-?\d+\//, "/$1/latest/")));
}

export async function copyLink(kind) {
  if (kind === "latest") await copyText(latestLink(), gettext("Link to the latest step copied"));
  else await copyText(exactLink(), gettext("Link copied"));
}
