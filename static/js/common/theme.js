// The colour theme: light, dark or as the system.
import { fill, gettext } from "./i18n.js";

const ORDER = { light: "auto", auto: "dark", dark: "light" };
const NAMES = { light: gettext("Theme: light"), auto: gettext("Theme: system"), dark: gettext("Theme: dark") };

// Sets the theme in the button's value, then puts the next theme into the button.
export function switchTheme(button) {
  const chosen = button.value;
  const root = document.documentElement;
  if (chosen === "auto") delete root.dataset.theme;
  else root.dataset.theme = chosen;
  const path = document.body.dataset.root;
  document.cookie = `theme=${chosen === "auto" ? "" : chosen}; path=${path}; max-age=31536000; samesite=lax`;
  button.value = ORDER[chosen];
  button.title = NAMES[chosen];
  button.setAttribute("aria-label", fill(gettext("{colours}. Switch theme."), { colours: NAMES[chosen] }));
  document.dispatchEvent(new CustomEvent("deck:theme"));
}
