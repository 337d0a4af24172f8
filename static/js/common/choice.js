// Calls `act(select)` when something is chosen in a select. The arrow keys of a closed select also change its value; then it waits
// for Enter or until the focus leaves, so that one can pass the options in between. Enter, Space, F4 and Alt with an arrow key open
// its list.
export function onChoice(selector, act) {
  let byKey = false, changed;
  const isOurs = (target) => Boolean(target.matches?.(selector));

  function send() {
    const select = changed;
    changed = undefined;
    if (select) act(select);
  }

  document.addEventListener("pointerdown", () => (byKey = false), true);
  document.addEventListener("keydown", (event) => {
    if (!isOurs(event.target)) return;
    const { key, altKey } = event;
    byKey = !altKey && !["Enter", " ", "F4", "Escape"].includes(key);
    if (key === "Enter" && changed) event.preventDefault(), send(); // else it also submits the form
  });
  document.addEventListener("change", ({ target }) => {
    if (!isOurs(target)) return;
    changed = target;
    if (!byKey) send();
  });
  document.addEventListener("focusout", send);
}

// Such a form needs no button.
onChoice("form[data-acts-at-once] select", (select) => select.form.requestSubmit());
