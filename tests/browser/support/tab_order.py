"""Checks what a person without a mouse can use: everything that Tab reaches, in order."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

# Finds all controls, and records which of them get the focus and whether the focus is visible. Of radio buttons with
# one name only one is a tab stop.
WATCH = """() => {
  const kinds = "a[href], button:not(:disabled), input:not([type=hidden]):not(:disabled), select:not(:disabled), " +
    "textarea:not(:disabled), summary, [tabindex]";
  const root = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document;
  const shown = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest("[inert]");
  const stops = [...root.querySelectorAll(kinds)].filter((one) => shown(one) && one.tabIndex >= 0);
  const radios = new Set();
  const single = (one) => one.type !== "radio" || (!radios.has(one.name) && radios.add(one.name));
  const look = (one) => [one, ...one.querySelectorAll("*"), one.closest("label, tr, li, article, section")]
    .filter(Boolean).slice(0, 12)
    .map((part) => getComputedStyle(part))
    .map((s) => [s.outline, s.boxShadow, s.borderColor, s.backgroundColor, s.stroke, s.fill, s.left].join());
  const named = (one) => Boolean(
    one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.textContent.trim() || one.title ||
    one.labels?.length || one.querySelector("[aria-label], title, img[alt]"));
  const describe = (one) => one.outerHTML.slice(0, 160);
  document.activeElement?.blur();
  const before = new Map(stops.filter(single).map((one) => [one, look(one).join(";")]));
  const order = [...before.keys()];
  window.tabbed = {
    all: order.map(describe),
    jumping: order.filter((one) => one.tabIndex > 0).map(describe),
    nameless: order.filter((one) => !named(one)).map(describe),
    hidden: order.filter((one) => one.closest("[aria-hidden=true]")).map(describe),
    met: [], unseen: [],
  };
  document.addEventListener("focusin", ({ target }) => {
    const at = order.indexOf(target.type === "radio" ? order.find((one) => one.name === target.name) : target);
    if (at < 0) return;
    window.tabbed.met.push(at);
    const same = look(target).join(";") === before.get(target);
    if (same && target.type !== "radio") window.tabbed.unseen.push(describe(target));
  });
  return order.length;
}"""


def list_keyboard_faults(page: Page, max_stops: int | None = None) -> list[str]:
    """Returns what does not work by keyboard on this page, or in its open dialog, as sentences."""
    page.keyboard.press("Tab")  # sets the stops of strips and lists
    stops = int(page.evaluate(WATCH))
    inside = 4 * page.locator("input[type=date]").count()  # day, month, year and calendar are stops in Chromium
    for _ in range(stops + inside + 2):
        page.keyboard.press("Tab")
    result: dict[str, Any] = page.evaluate("window.tabbed")
    met = list(dict.fromkeys(result["met"]))
    found = [("is not reached", result["all"][at]) for at in range(stops) if at not in met]
    back = [at for before, at in zip(met, met[1:], strict=False) if at < before]
    # Tab starts where the focus was, so it goes back once.
    found += [("is met out of order", result["all"][at]) for at in back[1:]]
    for what, key in (("jumps the order", "jumping"), ("has no name", "nameless"), ("has focus unseen", "unseen")):
        found += [(what, item) for item in result[key]]
    found += [("is hidden from screen readers", item) for item in result["hidden"]]
    if max_stops is not None and stops > max_stops:
        found.append(("has too many tab stops", str(stops)))
    return [f"{page.url}: {what}: {element}" for what, element in found]
