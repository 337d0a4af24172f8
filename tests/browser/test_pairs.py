"""Pairs of responses compared by keyboard: back, draft, undo; the sides, and no violation in both themes."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.support.axe import list_violations
from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_group import group

pytestmark = NGINX


def read_answers(page: Page) -> list[str]:
    return [str(field.get_attribute("value")) for field in page.locator(".pair input:checked").all()]


def test_pairs_are_compared_by_key_with_back_draft_and_undo(visit: Visit, training: Training) -> None:
    rows = [*group("a", [0.0, 0.5, 1.0, 0.2]), *group("b", [0.0, 1.0, 0.5, 0.3])]
    training.push_and_wait(1, len(rows), rows)
    settings = {"project": training.project, "name": "Pairs", "unit": "group", "pairs_per_group": 3}
    queue = training.product.post("queues/", {**settings, "runs": [training.uid]})["id"]
    page = visit.go(f"/queues/{queue}/review/")
    item = page.locator("article[data-item]").get_attribute("data-item")
    expect(page.locator(".order-card:visible [data-side]")).to_have_text(["Left", "Right"])
    left, right = str(page.locator(".pair").first.get_attribute("data-pair")).split("-")
    shown = [card.get_attribute("data-response") for card in page.locator(".order-card:visible").all()]
    assert shown == [left, right]
    refused = {"message": "The responses have changed.", "code": "outdated"}
    intercept(page, "**/answers/", lambda route: route.fulfill(status=400, json=refused), times=1)
    page.keyboard.press("ArrowRight")
    expect(page.locator("[data-answer-error]")).to_have_text("The responses have changed.")
    page.keyboard.press("=")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    with page.expect_response(lambda response: "/answers/" in response.url):
        page.keyboard.press("1")
    page.reload()
    expect(page.locator(".pair.current")).to_contain_text("Pair 3 of 3")
    assert read_answers(page) == ["left", "equal"]
    assert list_violations(page) == [] and measure_overflow(page) == 0
    page.keyboard.press("Enter")
    expect(page.locator("[data-answer-error]")).to_be_visible()
    page.keyboard.press("0")
    page.keyboard.press("Enter")
    expect(page.locator(f"article[data-item]:not([data-item='{item}'])")).to_be_visible()
    page.keyboard.press("u")
    expect(page.locator(f"article[data-item='{item}']")).to_be_visible()
    assert read_answers(page) == ["left", "equal", "skip"]
    visit.clear_faults()  # the refused draft
