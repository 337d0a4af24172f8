"""Lists what is cut, too wide or empty on a narrow page."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.browser.support.measure import measure_overflow

WIDTHS = (800, 400, 320)  # 320: a window of 1280 at 400 %

# Boxes that scroll sideways or cut their content. Text that ends with an ellipsis has its full form elsewhere.
CUT = """() => [...document.querySelectorAll("body *")].filter((box) => {
  const style = getComputedStyle(box);
  const bounded = style.overflowX !== "visible" && style.textOverflow !== "ellipsis" && box.clientWidth > 30;
  const may = ".wide-table, .wide-table *, .board-columns, .heat-box, .top, .segmented, .cells, .tail *, .end, " +
    ".visually-hidden, pre";
  return bounded && box.scrollWidth > box.clientWidth + 2 && !box.matches(may) && box.checkVisibility();
}).map((box) => `${box.tagName} ${box.id || box.className}: ${box.scrollWidth} > ${box.clientWidth}`)"""

# Tables that are wider than the box they are in. On a phone, tables of numbers scroll; their first column stays.
WIDE_TABLES = """(isPhone) => [...document.querySelectorAll("table")].filter((table) => {
  const numbers = ".compared, .prompts-compared, .metric-table, .measures, .settings-differ table, " +
    ".by-source table";
  const box = table.parentElement, wide = Math.max(table.scrollWidth, table.getBoundingClientRect().width);
  const may = isPhone ? `.heat, ${numbers}` : ".heat, .compared"; // as wide as there are steps, and measures
  return wide > box.clientWidth + 1 && table.checkVisibility() && !table.matches(may);
}).map((table) => `table ${table.id || table.className}: ${table.scrollWidth} > ${table.parentElement.clientWidth}`)"""

# Buttons of which only the key is a label, where keys are not shown.
EMPTY = """() => [...document.querySelectorAll("button, a.button, a.key-link")].filter((button) => {
  const shown = (text) => text.data.trim() && text.parentElement.checkVisibility();
  const texts = document.createTreeWalker(button, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) if (shown(texts.currentNode)) return false;
  const drawn = (part) => !["none", '""'].includes(getComputedStyle(button, part).content);
  const added = ["::before", "::after"].some(drawn);
  return button.checkVisibility() && button.clientWidth > 2 && !added && !button.querySelector("svg, img");
}).map((button) => `empty button: ${button.outerHTML.slice(0, 120)}`)"""


def list_layout_faults(page: Page) -> list[str]:
    """Returns the faults at each of the widths, as sentences. Leaves the window narrow."""
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        cut = [*page.evaluate(CUT), *page.evaluate(WIDE_TABLES, width < 600), *page.evaluate(EMPTY)]
        if (wide := measure_overflow(page)) > 0:
            cut.append(f"the page is {wide} px wider than the window")
        found += [f"{page.url} at {width}: {each}" for each in cut]
    return found
