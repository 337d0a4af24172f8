"""Keys in the review of a queue act on the item that was shown when they were pressed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit
from tests.browser.support.queues import ANSWER_MANY, STATUS, answer_item, create_queue, slow_down
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_slow import HeldRequests

pytestmark = DIRECT


@pytest.mark.usefixtures("mates")
def test_enter_of_an_input_method_does_not_send_the_answers(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 1)
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    page.keyboard.press("1")
    expect(page.get_by_role("radio", name="1 yes")).to_be_checked()  # a click drops keys that wait for the scripts
    page.locator(".correction summary").click()
    field = page.locator("[name=correction]")
    field.fill("よん")
    for state in ({"isComposing": True}, {"keyCode": 229}):  # Safari sends the second one
        field.dispatch_event("keydown", {"key": "Enter", "bubbles": True, "cancelable": True, **state})
    page.wait_for_timeout(300)
    expect(field).to_be_visible()
    page.keyboard.press("Enter")  # a new line, as in each text of several lines
    expect(field).to_have_value("よん\n")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[data-queue-done]")).to_be_visible()


@pytest.mark.usefixtures("mates")
def test_a_key_for_the_next_item_does_not_answer_the_refused_one_that_replaces_it(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    item = page.locator("article[data-item]").get_attribute("data-item")
    reopened = HeldRequests(page, re.compile(r"review/\?item="))
    intercept(page, "**/answers/", lambda route: route.fulfill(status=400, json={"message": "refused"}), times=1)
    answer_item(page)
    reopened.wait()
    page.keyboard.press("2")
    reopened.release()
    expect(page.locator("article[data-item]")).to_have_attribute("data-item", str(item))
    expect(page.locator("[data-answer-error]")).to_have_text("refused")
    expect(page.get_by_role("radio", name="2 no")).not_to_be_checked()
    page.keyboard.press("2")
    expect(page.get_by_role("radio", name="2 no")).to_be_checked()
    visit.clear_faults()


def create_differing_answers(
    visit: Visit, mates: list[Any], training: Training, count: int, rows: list[dict[str, Any]] | None = None
) -> int:
    """Returns a queue in which two people gave different answers to each of `count` items."""
    training.push_and_wait(1, count, rows)
    queue = create_queue(training, num_reviewers_per_item=2)
    contexts = [visit.context, visit.context.browser.new_context(storage_state=mates[1])]  # type: ignore[union-attr]
    for context, is_correct in zip(contexts, (True, False), strict=True):
        page = context.new_page()
        page.goto(f"{visit.site.url}/queues/{queue}/review/")
        page.evaluate(ANSWER_MANY.replace("value: true", f"value: {str(is_correct).lower()}"), [queue, count])
        page.evaluate("window.working")
        page.close()
    contexts[1].close()
    return queue


def test_a_key_right_after_another_one_decides_the_item_that_it_opens(
    visit: Visit, mates: list[Any], training: Training
) -> None:
    queue = create_differing_answers(visit, mates, training, 4)
    page = visit.go(f"/queues/{queue}/agreement/")
    marked = page.locator("#decide-list a[aria-current]")
    page.evaluate("document.body.dataset.kept = 'yes'")
    intercept(page, re.compile("item="), slow_down)
    page.keyboard.press("j")
    for key in ("1", "j", "2"):  # while the page of the second item loads
        page.keyboard.press(key)
    expect(page.locator("#decide-filter")).to_contain_text(re.compile(r"undecided\s*2\s*decided\s*2"))
    items = training.product.get(f"queues/{queue}/items/?page_size=10")["results"]
    assert [item["decided"].get("correct") for item in items] == [None, True, None, False]
    expect(marked).to_have_count(1)
    assert page.evaluate("document.body.dataset.kept") == "yes", "a browser loses keys while it loads a page"


def test_a_reason_is_sent_with_its_decision_and_not_left_for_the_next_item(
    visit: Visit, mates: list[Any], training: Training
) -> None:
    queue = create_differing_answers(visit, mates, training, 2)
    page = visit.go(f"/queues/{queue}/agreement/")
    reason = page.locator(".decide-reason").first
    reason.fill("the unit is missing")
    page.get_by_role("button", name=re.compile("^Take ")).first.press("Enter")
    expect(page.locator("#decide-filter")).to_contain_text(re.compile(r"undecided\s*1\s*decided\s*1"))
    expect(page.get_by_text("Decided. The answers of the people stay.")).to_be_visible()
    expect(reason).to_have_value("")
    expect(page.locator("#decide-list a[aria-current]")).to_be_focused()
    page.get_by_role("link", name=re.compile("^decided")).click()
    expect(page.locator(".decide-answers")).to_contain_text("the unit is missing")
    page.get_by_role("button", name="Undo the decision").click()
    expect(page.locator("#decide-filter")).to_contain_text(re.compile(r"undecided\s*2\s*decided\s*0"))


def test_the_next_item_begins_at_its_start_and_its_link_keeps_the_focus(
    visit: Visit, mates: list[Any], training: Training
) -> None:
    rows = [{"prompt": f"{n}?", "response": f"{n}: " + "line\n" * 300, "score": 1.0} for n in range(3)]
    queue = create_differing_answers(visit, mates, training, 3, rows)
    page = visit.go(f"/queues/{queue}/agreement/")
    response = page.locator(".decide-item .response")
    response.evaluate("(text) => text.scrollTo(0, 500)")
    page.locator("#decide-next").press("Enter")
    expect(page.locator("#decide-previous")).to_be_visible()
    assert response.evaluate("(text) => text.scrollTop") == 0
    expect(page.locator("#decide-next")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#decide-next")).to_have_count(0)


@pytest.mark.usefixtures("mates")
def test_keys_pressed_while_the_next_item_loads_answer_that_item(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    following = HeldRequests(visit.page, re.compile("after="))
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    for key in ("1", "4", "Enter", "2", "4", "Enter"):
        page.keyboard.press(key)
    following.wait()
    following.release()
    expect(page.locator(STATUS)).to_have_text("2 answered, 1 left")
    checked = page.locator("article[data-item] input:checked")
    expect(checked).to_have_count(0)
    page.keyboard.down("1")
    page.keyboard.down("1")  # as of a key that is held: the next question is not answered
    page.keyboard.up("1")
    expect(checked).to_have_count(1)
    page.keyboard.press("u")  # before the draft is saved
    expect(checked).to_have_count(2)
    page.keyboard.press("Enter")
    expect(checked).to_have_count(1)


@pytest.mark.usefixtures("mates")
def test_enter_goes_through_all_skipped_items(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    for left in (3, 2, 1):
        expect(page.locator(STATUS)).to_have_text(f"0 answered, {left} left")
        page.keyboard.press("s")
    expect(page.locator("[data-queue-done]")).to_contain_text("You skipped 3.")
    page.keyboard.press("Enter")
    for done in range(3):
        expect(page.locator(STATUS)).to_have_text(f"{done} answered, {3 - done} left")
        answer_item(page)
    expect(page.locator("[data-queue-done]")).to_contain_text("You answered 3 items.")
