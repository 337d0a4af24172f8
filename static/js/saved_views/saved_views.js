// The menu of saved views. A form that saves sends what the page shows now: the query string of the current URL.
// After an error the menu stays open with what one has entered.
import "../common/popover.js";
import { postForm } from "../common/post.js";
import { writeMessage } from "../common/ui.js";

const menu = document.getElementById("views-menu");

menu?.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-view-form]")) return;
  event.preventDefault();
  form.elements.params.value = location.search;
  form.elements.next.value = location.pathname + location.search;
  try {
    await postForm(form, {}, event.submitter);
    location.reload();
  } catch (error) {
    const line = form.querySelector(".error-line");
    writeMessage(line, error.message);
    line.hidden = false;
  }
});
