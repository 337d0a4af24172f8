// Boxes that open over the page: a click elsewhere or Esc shuts them; a field in one narrows its list.

document.addEventListener("input", (event) => {
  const among = event.target.dataset?.narrow;
  if (!among) return;
  const word = event.target.value.trim().toLowerCase();
  for (const one of document.querySelectorAll(among)) one.hidden = !one.textContent.toLowerCase().includes(word);
});

document.addEventListener("keydown", (event) => {
  const open = document.querySelector("details.popover[open]");
  if (event.key !== "Escape" || !open) return;
  open.open = false;
  open.querySelector("summary").focus();
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.popover[open]")) if (!open.contains(event.target)) open.open = false;
});

// Enter in such a field takes the first of what it left, instead of sending a form.
document.addEventListener("keydown", (event) => {
  const among = event.target.dataset?.narrow;
  if (!among || event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  [...document.querySelectorAll(among)].find((one) => !one.hidden)?.querySelector("a, input")?.click();
});
