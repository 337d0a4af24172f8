// Says that the preview of a new queue is older than the settings.
const form = document.getElementById("new-queue");
const note = form.querySelector("[data-stale]");

form.addEventListener("input", () => {
  note.hidden = false;
});
form.addEventListener("htmx:beforeSend", ({ target }) => {
  if (target.matches("button")) note.hidden = true; // not the first preview, which may arrive after a change
});
