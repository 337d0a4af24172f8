"""Strips, lists and grids as one tab stop each, with arrow keys inside."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, rows, selected
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_group import group
from tests.browser.test_pins import plan_steps
from tests.browser.test_slow import Held

pytestmark = DIRECT

LINE_STOPS = (
    "(box) => [...box.querySelectorAll('a, button, summary, input:not([type=hidden])')]"
    ".filter((one) => one.tabIndex >= 0 && one.checkVisibility()).length"
)
STOPS = "(box) => [...box.querySelectorAll('a, button, summary')].filter((one) => one.tabIndex >= 0).length"


@pytest.fixture
def steps(visit: Visit, training: Training) -> Page:
    """The second of four steps, each with two groups."""
    for step in range(1, 5):
        training.pushed(step, 6, [*group("a", [0.0, 1.0, 0.5]), *group("b", [1.0, 1.0, 0.0])])
    page = visit.go(f"/runs/{training.uid}/steps/2/")
    page.wait_for_load_state("networkidle")
    return page


def focused(page: Page) -> str:
    """The link that has the focus, or its text."""
    return str(
        page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.textContent.trim()")
    )


def test_a_strip_is_one_stop_and_arrow_keys_move_along_it(steps: Page) -> None:
    strip = steps.locator("#strip-bars")
    steps.locator(".tabs a").last.focus()
    while not strip.evaluate("(box) => box.contains(document.activeElement)"):
        steps.keyboard.press("Tab")
    assert strip.evaluate(STOPS) == 1
    assert "/steps/2/" in focused(steps)  # the step of the page
    for key, step in (("ArrowRight", 3), ("End", 4), ("ArrowRight", 4), ("Home", 1), ("ArrowLeft", 1)):
        steps.keyboard.press(key)
        assert f"/steps/{step}/" in focused(steps), key
    steps.keyboard.press("Tab")
    assert not strip.evaluate("(box) => box.contains(document.activeElement)")
    steps.keyboard.press("Shift+Tab")
    assert "/steps/1/" in focused(steps)  # where one left it


def test_the_list_keeps_one_stop_which_is_the_selected_row(steps: Page) -> None:
    ids = rows(steps)
    steps.locator(f"#r-{ids[0]} .tail a").focus()
    for key, at in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        steps.keyboard.press(key)
        assert f"sel={ids[at]}" in focused(steps)
    steps.keyboard.press("ArrowLeft")
    assert "/groups/2/" in focused(steps)  # the cell of the group in the same row
    steps.keyboard.press("End")
    steps.keyboard.press("Enter")
    expect(steps.locator("#sample article")).to_have_attribute("data-id", ids[1])
    steps.keyboard.press("j")
    expect(steps.locator("#sample article")).to_have_attribute("data-id", ids[2])
    assert selected(steps) == [ids[2]]
    assert f"sel={ids[2]}" in focused(steps)  # the focus follows the selection
    steps.keyboard.press("Tab")
    assert steps.locator("#samples").evaluate(STOPS) == 1


def test_stop_and_focus_survive_when_the_panel_is_replaced(steps: Page, training: Training) -> None:
    intercept(steps, re.compile(r"/samples/\?"), lambda route: route.fulfill(json={}))  # no pane is there in advance
    steps.reload()
    ids = rows(steps)
    steps.locator(f"#r-{ids[1]} .tail a").click()
    expect(steps.locator("#sample article")).to_have_attribute("data-id", ids[1])
    steps.locator("#cells a[aria-current]").focus()
    steps.keyboard.press("Home")
    first = focused(steps)
    steps.keyboard.press("ArrowRight")
    second = focused(steps)
    assert first != second
    pane = Held(steps, "**/samples/**")  # until it comes, the old cells cannot have the focus
    steps.keyboard.press("Enter")  # replaces the pane with the cells
    expect(steps.locator("#sample article[inert]")).to_be_attached()
    steps.wait_for_timeout(100)  # two frames: the browser takes the focus away
    pane.release()
    expect(steps.locator("#cells a[aria-current]")).to_have_attribute("href", second)
    expect(steps.locator("#cells a[aria-current]")).to_be_focused()
    steps.locator("#strip-bars a").first.focus()
    training.pushed(5, 3, group("a", [0.0, 1.0, 0.5]))  # replaces the strip
    expect(steps.locator("#strip-bars a")).to_have_count(5)
    assert "/steps/1/" in focused(steps)
    steps.keyboard.press("End")
    assert "/steps/5/" in focused(steps)


def test_the_lines_of_a_plan_and_the_list_of_pins_are_one_stop_each(visit: Visit, training: Training) -> None:
    plan_steps(training, 5, "roving")
    page = visit.go(f"/pins/?project={training.project}&plan=roving")
    page.wait_for_load_state("networkidle")
    page.evaluate("htmx.config.defaultSettleDelay = 20_000")  # a slow computer: the next key comes in between
    page.locator("#run").focus()
    page.keyboard.press("Tab")
    fields = page.locator("#plan-lines input[name=target]")
    expect(fields).to_have_count(5)
    expect(fields.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(fields.nth(1)).to_be_focused()
    page.keyboard.type("77")  # replaces what the field had
    expect(fields.nth(1)).to_have_value("77")
    page.keyboard.press("ArrowLeft")  # inside the text
    expect(fields.nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(fields.nth(2)).to_be_focused()
    expect(page.locator("#plan-strip")).to_contain_text(f"step 77: {training.name}")
    assert page.locator("#plan-lines").evaluate(LINE_STOPS) == 1
    expect(fields.nth(2)).to_be_focused()
    page.keyboard.press("ArrowRight")  # the whole text is selected, so the caret is at its end
    assert "/steps/" in focused(page)
    page.keyboard.press("End")
    assert focused(page) == "Remove"
    page.keyboard.press("Tab")
    assert not page.locator("#plan-lines").evaluate("(table) => table.contains(document.activeElement)")
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "Remove"  # where one left it
    assert page.locator("#plan-lines").evaluate(LINE_STOPS) == 1
    pins = page.locator("#pin-list")
    assert pins.evaluate(LINE_STOPS) == 1
    note = pins.locator("summary").first
    note.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(pins.locator("input[name=note]").first).to_be_focused()
    page.keyboard.press("Escape")


def test_all_fields_are_one_stop_and_a_text_that_scrolls_is_another(visit: Visit, training: Training) -> None:
    training.pushed(1, 1, [{"prompt": "p", "response": "line\n" * 200, "score": 1.0, "zone": "z"}])
    page = visit.go(f"/samples/{training.samples(1)[0]['id']}/?view=json")
    fields = page.locator("#all-fields")
    texts = "(box) => [...box.querySelectorAll('a, button, div.text')].filter((one) => one.tabIndex >= 0).length"
    assert fields.evaluate(texts) == 2
    response = fields.get_by_role("group", name="response", exact=True)
    response.focus()
    page.keyboard.press("ArrowDown")
    expect(response).to_be_focused()
    prompt = fields.get_by_role("group", name="prompt", exact=True)
    prompt.focus()
    page.keyboard.press("ArrowRight")
    assert fields.locator("button:focus").count() == 1
    page.keyboard.press("ArrowLeft")
    expect(prompt).to_be_focused()
    assert fields.evaluate(texts) == 2


def test_without_scripts_every_bar_is_a_link(person: object, training: Training, site: object) -> None:
    for step in (1, 2, 3):
        training.pushed(step, 2)
    page = person(java_script_enabled=False).go(f"/runs/{training.uid}/steps/2/")  # type: ignore[operator]
    assert page.locator("#strip-bars a[tabindex]").count() == 0
    page.locator("#strip-bars a").nth(0).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/steps/2/**")
