"""The query box and the charts that write it, by keyboard and by mouse."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from tests.browser.support.intercept import HeldRequests, intercept
from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations

pytestmark = DIRECT

COUNT = 20


def open_step(visit: Visit, training: Training) -> Page:
    """A step of 20 samples with scores from 0 to 0.95, each longer than the one before."""
    created = generations(1, COUNT)
    for n, row in enumerate(created):
        row["response"] = f"answer {n} " + "x" * (20 + 10 * n)
    training.push_and_wait(1, COUNT, created)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    expect(page.locator("[data-scripted]")).to_be_attached()
    return page


def drag(page: Page, over: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one place to another, both as shares of the element's box."""
    box = over.bounding_box()
    assert box
    positions = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*positions[0])
    page.mouse.down()
    page.mouse.move(*positions[1], steps=4)
    page.mouse.up()


def test_a_brush_over_a_chart_writes_the_query_and_back_removes_it(visit: Visit, training: Training) -> None:
    page = open_step(visit, training)
    drag(page, page.locator("svg.points"), (0.02, 0.55), (0.99, 0.99))
    expect(page.locator("#q")).to_have_value(re.compile(r"^score:\.\.0\.\d+ len:\d+\.\.\d+$"))
    expect(page.locator("#found")).not_to_have_attribute("data-total", str(COUNT))
    expect(page.locator("svg.points .region")).to_be_attached()
    page.get_by_role("link", name="clear", exact=True).click()
    expect(page.locator("#found")).to_have_attribute("data-total", str(COUNT))
    drag(page, page.locator(".bins"), (0.5, 0.5), (0.7, 0.5))
    expect(page.locator("#q")).to_have_value("score>0 score<1")
    expect(page.locator("#found")).to_have_attribute("data-total", str(COUNT - 1))
    expect(page.locator("#rows tr[data-id]")).to_have_count(COUNT - 1)
    page.go_back()
    expect(page.locator("#q")).to_have_value("")
    expect(page.locator("#rows tr[data-id]")).to_have_count(COUNT)


def test_the_query_box_completes_by_keyboard_and_keeps_the_last_result_after_an_error(
    visit: Visit, training: Training
) -> None:
    page = open_step(visit, training)
    box, choices = page.get_by_role("combobox", name="Query"), page.locator("#q-choices").get_by_role("option")
    page.keyboard.press("/")
    page.keyboard.type("sco")
    expect(choices.first).to_have_text(re.compile(r"^score.*0 to 0\.95"))
    expect(box).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Tab")
    expect(box).to_have_value("score")
    page.keyboard.type("<0.1")
    expect(page.locator("#found")).to_have_attribute("data-total", "2")
    page.keyboard.type(" is:wro")
    expect(choices).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", "q-choice-0")
    page.keyboard.press("Enter")
    expect(box).to_have_value("score<0.1 is:wrong ")
    expect(choices).to_have_count(0)
    expect(page.locator("#found")).to_have_attribute("data-total", "1")
    page.keyboard.type(")")
    page.wait_for_timeout(400)  # no error while a user types
    expect(box).to_have_attribute("aria-invalid", "false")
    page.keyboard.press("Enter")
    expect(page.locator("#q-error u")).to_have_text(")")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(box).to_be_focused()
    expect(page.locator("#rows tr[data-id]")).to_have_count(1)
    intercept(page, re.compile(r"/steps/latest/\?.*0\.5"), lambda route: route.fulfill(status=503))
    box.fill("score<0.5")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_have_text("The server returned status 503.")
    visit.clear_faults()


def test_a_step_with_many_fields_is_not_cut_off_on_a_small_screen(visit: Visit, training: Training) -> None:
    sources = [f"openai/source_{n}" for n in range(6)]
    rows = generations(1, 12)
    values = [
        {**row, "data_source": sources[n % 6], "response_length": 1000 * n, "truncated": n == 11, "acc": n % 2}
        for n, row in enumerate(rows)
    ]
    training.push_and_wait(1, 12, values)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    page.evaluate("document.fonts.ready.then(() => true)")
    for width in (1440, 1280, 1200, 1120):
        page.set_viewport_size({"width": width, "height": 800})
        cut = ".top, .figures, .tiles, .bars, .bin, .scatter, .sources"
        wider = f"[...document.querySelectorAll('{cut}')].filter(one => one.scrollWidth > one.clientWidth + 1)"
        assert page.evaluate(f"{wider}.map(one => one.className)") == [], width


def test_an_incomplete_query_is_not_sent_and_back_undoes_a_query(visit: Visit, training: Training) -> None:
    page = open_step(visit, training)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    box, total = page.get_by_role("combobox", name="Query"), page.locator("#found")
    page.keyboard.press("/")
    for text in ("s", "core<", "0."):
        page.keyboard.insert_text(text)  # at once: a pause behind `score<0` asks for it
        page.wait_for_timeout(350)
        expect(box).to_have_attribute("aria-invalid", "false")
    box.fill("is:wr")
    page.wait_for_timeout(350)
    expect(box).to_have_attribute("aria-invalid", "false")
    assert [url for url in requested if "/steps/latest/?q=" in url] == []
    box.fill("score<0.5")
    expect(total).to_have_attribute("data-total", "10")
    box.fill("score<0.2")
    expect(total).to_have_attribute("data-total", "4")
    page.keyboard.press("Enter")
    expect(page.locator("#table")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("score<0.1")
    page.keyboard.press("Enter")
    expect(total).to_have_attribute("data-total", "2")
    for q, count in (("score<0.2", "4"), ("", str(COUNT))):
        page.go_back()
        expect(box).to_have_value(q)
        expect(total).to_have_attribute("data-total", count)
    page.go_forward()
    expect(total).to_have_attribute("data-total", "4")


def test_a_query_that_is_removed_from_the_box_before_its_answer_is_not_applied(
    visit: Visit, training: Training
) -> None:
    page = open_step(visit, training)
    queries = HeldRequests(page, re.compile(r"/steps/latest/\?q="))
    box = page.get_by_role("combobox", name="Query")
    box.fill("score<0.5")
    queries.wait()
    with page.expect_event("requestfailed"):
        box.fill("")
    queries.release()
    page.wait_for_load_state("networkidle")
    expect(page.locator("#found")).to_have_attribute("data-total", str(COUNT))
    assert "q=" not in page.url
