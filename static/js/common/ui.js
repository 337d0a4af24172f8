// Times, copying, help, the bar that says something is on its way.
import { fill, gettext } from "./i18n.js";
import { work } from "./panel.js";

const UNITS = [[60, 1, gettext("{n} s ago")], [3600, 60, gettext("{n} min ago")], [86400, 3600, gettext("{n} h ago")], [Infinity, 86400, gettext("{n} d ago")]];

function ago(moment) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(moment)) / 1000));
  const [, size, said] = UNITS.find(([most]) => seconds < most);
  return fill(said, { n: Math.floor(seconds / size) });
}

function tell(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const text = ago(time.dateTime);
    if (time.textContent !== text) time.textContent = text;
  }
}

tell();
setInterval(() => document.hidden || tell(), 5000);
document.addEventListener("deck:settled", (event) => tell(event.detail.panel));
document.addEventListener("htmx:afterSettle", () => tell());
document.addEventListener("htmx:beforeRequest", () => work(1));
document.addEventListener("htmx:afterRequest", () => work(-1));

let fading;
export function say(text) {
  document.querySelector(".toast")?.remove();
  const toast = Object.assign(document.createElement("p"), { className: "toast", textContent: text });
  toast.setAttribute("role", "status");
  document.body.append(toast);
  clearTimeout(fading);
  fading = setTimeout(() => toast.remove(), 1600);
}

export async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copyOld(text);
}

// Plain http on another machine has no clipboard API.
function copyOld(text) {
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await copy(button.closest(".copyable").querySelector("pre").textContent);
  say(gettext("Copied"));
});

document.querySelector("[data-help]")?.addEventListener("click", () => document.getElementById("help").showModal());

// Scripts change the address: back to what is on the screen now.
document.querySelector("[data-language-switch]")?.addEventListener("submit", (event) => {
  event.target.elements.next.value = location.pathname + location.search + location.hash;
});
