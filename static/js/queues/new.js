// Says that the preview of a new queue is older than the settings.
const form = document.getElementById("new-queue");

form.addEventListener("input", () => {
  form.querySelector("[data-stale]").hidden = false;
});
