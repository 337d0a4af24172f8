// The box that adds what is on the screen to a finding. Its form is the server's; the quote is what was selected.
import { say } from "../common/ui.js";
import { gettext } from "../common/i18n.js";
import { ask } from "../common/panel.js";
import { post } from "../common/post.js";

const box = Object.assign(document.createElement("dialog"), { id: "adding", className: "adding", ariaLabel: gettext("Add to a finding") });
document.body.append(box);

// What the page shows besides the sample: its query and step, or the charts under the mouse.
function looked(href) {
  const url = new URL(href, location.href);
  const here = new URLSearchParams(location.search);
  const page = document.getElementById("step-page");
  const step = page && (page.dataset.word === "all" ? "all" : document.querySelector("#samples[data-step], #found[data-step]")?.dataset.step || page.dataset.step);
  if (step) url.searchParams.set("step", step);
  for (const name of page ? ["split", "q", "sort", "attempt"] : ["runs", "attempt"]) if (here.get(name)) url.searchParams.set(name, here.get(name));
  const under = document.querySelector(".chart:hover") ?? document.activeElement?.closest(".chart");
  if (url.searchParams.has("charts")) for (const name of under?.title.split("\n") ?? []) url.searchParams.append("names", name);
  return url.pathname + url.search;
}

export async function open(href, quoted) {
  try {
    box.innerHTML = (await ask(box, looked(href))) ?? "";
  } catch (error) {
    return say(/ 403/.test(error.message) ? gettext("Adding to a finding needs the role annotator.") : gettext("The box could not be opened; the server does not answer."));
  }
  quote(quoted);
  const to = box.querySelector("#add-to");
  if (!box.open) box.showModal();
  (to?.value ? box.querySelector("#add-words, #add-names") : box.querySelector("#add-title"))?.focus();
}

function quote({ text, near }) {
  const place = box.querySelector("[data-quotes]");
  if (!place || !text.trim()) return;
  const shown = Object.assign(document.createElement("blockquote"), { className: "quote-of", textContent: text });
  const kept = Object.assign(document.createElement("input"), { type: "hidden", name: "quote", value: text });
  const at = Object.assign(document.createElement("input"), { type: "hidden", name: "near", value: near });
  place.append(shown, kept, at);
}

box.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = box.querySelector("[data-said]");
  said.textContent = "";
  try {
    const told = await post(event.target, {}, event.submitter);
    box.close();
    say(told.said);
  } catch (error) {
    said.textContent = error.message;
  }
});

// Enter in a text begins a line; with Ctrl it sends, as anywhere else.
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) box.querySelector("form").requestSubmit();
});

box.addEventListener("click", (event) => {
  if (event.target === box || event.target.closest("[data-add-close]")) box.close();
});
