// The lines of a plan: j and k move, x selects, Ctrl+Enter saves.
import { isIgnored } from "../common/keyboard_layout.js";
import { waitForUserRequests } from "../common/panel.js";

const form = () => document.getElementById("plan-form");
const lines = () => [...document.querySelectorAll("#plan .entries .replays")].filter((link) => link.checkVisibility());
const here = (all) => all.indexOf(document.activeElement.closest?.(".entries tr")?.querySelector(".replays"));

// Opening or selecting lines changes nothing of the plan, so the form must not ask for a new preview. The box of folded
// lines selects all of them.
document.addEventListener(
  "change",
  (event) => {
    const box = event.target;
    if (!box.matches?.(".unfold, .pick")) return;
    event.stopPropagation();
    if (box.closest("tr.fold") && box.matches(".pick"))
      for (const other of box.closest("tbody").querySelectorAll(".member .pick")) other.checked = box.checked;
  },
  true,
);

document.addEventListener("click", (event) => {
  const move = event.target.closest("[data-line]");
  const pick = event.target.closest("[data-line-pick]");
  if (!move && !pick) return;
  const all = lines();
  const target = all[Math.min(Math.max(here(all) + Number(move?.dataset.line ?? 0), 0), all.length - 1)];
  target?.focus();
  if (pick) target?.closest("tr").querySelector(".pick")?.click();
});

// Ctrl+Enter saves what is typed and chosen. A field that is left after a change asks for a new preview, and the button is
// enabled only with its answer.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || isIgnored(event) || document.querySelector("dialog[open]")) return;
  const field = document.activeElement;
  if (!form() || (field.form && field.form !== form())) return;
  event.preventDefault();
  if (field.matches("[name=target]") && field.value !== field.defaultValue) field.blur();
  waitForUserRequests(document.getElementById("plan")).then(() => form()?.querySelector("button[value=save]:enabled")?.click());
});

// A removed line leaves the form at once: a click that comes before the answer stops the request of this one, and its
// own request is of the form as it is then.
document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest("#plan-form button[name=remove]");
    if (!button) return;
    const rows = button.closest("tr.fold") ? [...button.closest("tbody").rows] : [button.closest("tr")];
    const others = [...document.querySelectorAll("#plan-form button[name=remove]")];
    const following = others.slice(others.indexOf(button) + 1).concat(others.slice(0, others.indexOf(button)).reverse());
    for (const row of rows) {
      row.hidden = true;
      for (const input of row.querySelectorAll("input[name]")) input.disabled = true;
    }
    following.find((other) => other.checkVisibility())?.focus();
    button.value = "";
  },
  true,
);
