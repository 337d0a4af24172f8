// The menu of saved views. A form that saves sends what the page shows now: the query string of the current URL.
import "../common/popover.js";

const menu = document.getElementById("views-menu");

menu?.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("[data-view-form]")) return;
  form.elements.params.value = location.search;
  form.elements.next.value = location.pathname + location.search;
});
