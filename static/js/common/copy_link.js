// Links to what is on the screen: y to exactly this, Y to whatever is latest.
import { copy, say } from "./ui.js";
import { gettext } from "./i18n.js";
import { address } from "./panel.js";

const whole = (path) => new URL(path, location.href).href;

// The step in the address's path, or the steps in `of=`, as they are now.
function exact() {
  const row = document.querySelector("#rows tr[aria-selected]")?.dataset.id;
  const of = document.querySelector("[data-of]")?.dataset.of;
  const steps = { ...(row ? { sel: row } : {}), ...(of ? { of } : {}) };
  const at = document.querySelector("#found, .board-head")?.dataset.step;
  return whole(address(steps, at ? location.href.replace(/\/(steps|groups)\/latest\//, `/$1/${at}/`) : location.href));
}

function following() {
  const of = new URLSearchParams(location.search).get("of");
  const changes = of ? { of: of.replace(/@-?\d+/g, "@latest"), sel: "" } : { sel: "" };
  return whole(address(changes, location.href.replace(/\/(steps|groups)\/-?\d+\//, "/$1/latest/")));
}

export async function link(kind) {
  await copy(kind === "latest" ? following() : exact());
  say(kind === "latest" ? gettext("Link to the latest step copied") : gettext("Link copied"));
}
