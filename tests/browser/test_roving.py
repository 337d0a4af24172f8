"""Strips, lists and grids are one tab stop each, with arrow keys inside."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.support.intercept import HeldRequests, intercept
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_group import group
from tests.browser.test_pins import plan_steps

pytestmark = DIRECT

LINE_STOPS = (
    "(box) => [...box.querySelectorAll('a, button, summary, input:not([type=hidden])')]"
    ".filter((one) => one.tabIndex >= 0 && one.checkVisibility()).length"
)
STOPS = "(box) => [...box.querySelectorAll('a, button, summary')].filter((one) => one.tabIndex >= 0).length"


@pytest.fixture
def step_page(visit: Visit, training: Training) -> Page:
    """The page of the second of four steps, each with two groups."""
    for step in range(1, 5):
        training.push_and_wait(step, 6, [*group("a", [0.0, 1.0, 0.5]), *group("b", [1.0, 1.0, 0.0])])
    page = visit.go(f"/runs/{training.uid}/steps/2/")
    page.wait_for_load_state("networkidle")
    return page


def read_focus(page: Page) -> str:
    """Returns the link of the focused element, or its text."""
    return str(
        page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.textContent.trim()")
    )


def test_a_strip_is_one_stop_and_arrow_keys_move_along_it(step_page: Page) -> None:
    strip = step_page.locator("#strip-bars")
    step_page.locator(".tabs a").last.focus()
    while not strip.evaluate("(box) => box.contains(document.activeElement)"):
        step_page.keyboard.press("Tab")
    assert strip.evaluate(STOPS) == 1
    assert "/steps/2/" in read_focus(step_page)  # the step of the page
    for key, step in (("ArrowRight", 3), ("End", 4), ("ArrowRight", 4), ("Home", 1), ("ArrowLeft", 1)):
        step_page.keyboard.press(key)
        assert f"/steps/{step}/" in read_focus(step_page), key
    step_page.keyboard.press("Tab")
    assert not strip.evaluate("(box) => box.contains(document.activeElement)")
    step_page.keyboard.press("Shift+Tab")
    assert "/steps/1/" in read_focus(step_page)  # where one left it


def test_the_list_keeps_one_stop_which_is_the_selected_row(step_page: Page) -> None:
    ids = list_row_ids(step_page)
    step_page.locator(f"#r-{ids[0]} .tail a").focus()
    for key, at in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        step_page.keyboard.press(key)
        assert f"sel={ids[at]}" in read_focus(step_page)
    step_page.keyboard.press("ArrowLeft")
    assert "/groups/2/" in read_focus(step_page)  # the cell of the group in the same row
    step_page.keyboard.press("End")
    step_page.keyboard.press("Enter")
    expect(step_page.locator("#sample article")).to_have_attribute("data-id", ids[1])
    step_page.keyboard.press("j")
    expect(step_page.locator("#sample article")).to_have_attribute("data-id", ids[2])
    assert list_selected_ids(step_page) == [ids[2]]
    assert f"sel={ids[2]}" in read_focus(step_page)  # the focus follows the selection
    step_page.keyboard.press("Tab")
    assert step_page.locator("#samples").evaluate(STOPS) == 1


def test_tab_stop_and_focus_are_kept_when_the_panel_is_replaced(step_page: Page, training: Training) -> None:
    intercept(
        step_page, re.compile(r"/samples/\?"), lambda route: route.fulfill(json={})
    )  # no pane is there in advance
    step_page.reload()
    ids = list_row_ids(step_page)
    step_page.locator(f"#r-{ids[1]} .tail a").click()
    expect(step_page.locator("#sample article")).to_have_attribute("data-id", ids[1])
    step_page.locator("#cells a[aria-current]").focus()
    step_page.keyboard.press("Home")
    first = read_focus(step_page)
    step_page.keyboard.press("ArrowRight")
    second = read_focus(step_page)
    assert first != second
    pane = HeldRequests(step_page, "**/samples/**")  # until it comes, the old cells cannot have the focus
    step_page.keyboard.press("Enter")  # replaces the pane with the cells
    expect(step_page.locator("#sample article[inert]")).to_be_attached()
    step_page.wait_for_timeout(100)  # two frames: the browser takes the focus away
    pane.release()
    expect(step_page.locator("#cells a[aria-current]")).to_have_attribute("href", second)
    expect(step_page.locator("#cells a[aria-current]")).to_be_focused()
    step_page.locator("#strip-bars a").first.focus()
    training.push_and_wait(5, 3, group("a", [0.0, 1.0, 0.5]))  # replaces the strip
    expect(step_page.locator("#strip-bars a")).to_have_count(5)
    assert "/steps/1/" in read_focus(step_page)
    step_page.keyboard.press("End")
    assert "/steps/5/" in read_focus(step_page)


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
    assert "/steps/" in read_focus(page)
    page.keyboard.press("End")
    assert read_focus(page) == "Remove"
    page.keyboard.press("Tab")
    assert not page.locator("#plan-lines").evaluate("(table) => table.contains(document.activeElement)")
    page.keyboard.press("Shift+Tab")
    assert read_focus(page) == "Remove"  # where one left it
    assert page.locator("#plan-lines").evaluate(LINE_STOPS) == 1
    pins = page.locator("#pin-list")
    assert pins.evaluate(LINE_STOPS) == 1
    note = pins.locator("summary").first
    note.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(pins.locator("textarea[name=note]").first).to_be_focused()
    page.keyboard.press("Escape")


def test_all_fields_are_one_stop_and_a_text_that_scrolls_is_another(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 1, [{"prompt": "p", "response": "line\n" * 200, "score": 1.0, "zone": "z"}])
    page = visit.go(f"/samples/{training.list_samples(1)[0]['id']}/?view=json")
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


def test_without_scripts_every_bar_is_a_link(open_visit: object, training: Training, site: object) -> None:
    for step in (1, 2, 3):
        training.push_and_wait(step, 2)
    page = open_visit(java_script_enabled=False).go(f"/runs/{training.uid}/steps/2/")  # type: ignore[operator]
    assert page.locator("#strip-bars a[tabindex]").count() == 0
    page.locator("#strip-bars a").nth(0).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/steps/2/**")
