// The menu of saved views. A form that saves sends what the page shows now: the query string of the current URL.
// After an error the menu stays open with what one has entered.
import "../common/popover.js";
import { requestPanel } from "../common/panel.js";
import { postForm } from "../common/post.js";
import { writeMessage } from "../common/ui.js";

const menu = document.getElementById("views-menu");
const list = document.getElementById("views-list");

// The list is loaded when the menu opens for the first time, or again after an error.
menu?.addEventListener("toggle", async () => {
  if (!menu.open || !list.dataset.url) return;
  const { url } = list.dataset;
  delete list.dataset.url;
  try {
    list.innerHTML = await requestPanel(list, url);
  } catch (error) {
    list.dataset.url = url;
    writeMessage(list.querySelector("p"), error.message);
  }
});

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
