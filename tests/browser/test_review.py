"""Quick review by keyboard, and marks of samples that were viewed."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import expect

from tests.browser.support.axe import list_violations
from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids, measure_overflow
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_slow import HeldRequests

pytestmark = NGINX


def test_each_sample_of_a_queue_is_judged_by_one_key_and_the_last_decision_is_undone(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "of=" in request.url else None)
    page.keyboard.press("o")
    page.keyboard.press("v")
    expect(page.locator("#queue")).to_contain_text("0 of 4 · 0 %")
    while not requests:  # a slow browser asks after a pause that counts as idle
        page.wait_for_timeout(50)
    page.wait_for_load_state("networkidle")
    assert [urlsplit(url).path.endswith("/samples/") for url in requests] == [True]  # the panes of the others, at once
    first, second, third, last = list_row_ids(page)
    for _ in range(3):
        page.keyboard.down("a")  # as of a key that is held: only one sample is decided
    page.keyboard.up("a")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    expect(page.locator(f"#r-{first}")).to_contain_text("✓ OK")
    page.keyboard.press("1")
    expect(page.locator(f"#sample article[data-id='{third}']")).to_be_visible()
    expect(page.locator(f"#r-{second}")).to_contain_text("⚑ reward hack")
    expect(page.locator("#queue")).to_contain_text("2 of 4 · 50 %")
    expect(page.locator("#queue .done .value")).to_have_attribute("width", "50%")
    assert list_selected_ids(page) == [third]
    page.keyboard.press("u")
    expect(page.locator("#queue")).to_contain_text("1 of 4 · 25 %")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(f"#sample article[data-id='{last}']")).to_be_visible()
    page.locator("#verdict-text").fill("odd")
    page.get_by_role("button", name="wrong grader").click()
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()  # the first that is left
    expect(page).to_have_url(re.compile(f"sel={second}"))
    expect(page.locator("#queue")).to_contain_text("2 of 4 · 50 %")
    page.reload()
    expect(page.locator("#queue")).to_contain_text("2 of 4 · 50 %")
    page.set_viewport_size({"width": 800, "height": 900})
    assert measure_overflow(page) == 0
    assert list_violations(page) == []


def test_a_decision_can_be_changed_before_it_is_saved(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/review/?run={training.uid}")
    first, second, third = list_row_ids(page)
    decisions = HeldRequests(page, "**/verdict/")
    page.keyboard.press("1")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    decisions.wait()
    training.product.post("flags/", {"sample": third})
    expect(page.locator(f"#r-{third}")).to_have_attribute("data-done", "")  # the list is up to date
    expect(page.locator(f"#r-{first}")).to_have_attribute("data-done", "")
    page.keyboard.press("k")
    expect(page.locator(f"#sample article[data-id='{first}']")).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    decisions.release()
    expect(page.locator(f"#r-{first}")).to_contain_text("✓ OK")
    expect(page.locator("#queue")).to_contain_text("2 of 3 · 66 %")


def test_a_comment_that_is_not_sent_stays_with_its_sample(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/review/?run={training.uid}")
    first, second, _third = list_row_ids(page)
    comment, label = page.locator("#verdict-text"), page.locator("#verdict-label")
    comment.fill("about the first")
    label.select_option("unsure")
    page.locator(f"#r-{second}").click(position={"x": 4, "y": 8})  # at the edge, where other lists select the row
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    expect(comment).to_have_value("")
    expect(label).to_have_value("bad")
    comment.fill("about the second")
    page.locator(f"#r-{first}").click()
    expect(comment).to_have_value("about the first")
    expect(label).to_have_value("unsure")
    intercept(page, "**/verdict/", lambda route: route.fulfill(status=400, json={"message": "refused"}))
    page.locator("#decisions").get_by_role("button", name="Save").last.click()
    expect(page.locator(".toast")).to_have_text("refused")
    expect(comment).to_have_value("about the first")
    expect(label).to_have_value("unsure")
    page.locator(f"#r-{second}").click()
    expect(comment).to_have_value("about the second")
    visit.clear_faults()


def test_a_sample_that_was_read_for_a_second_is_marked_as_viewed(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    first, second, third = list_row_ids(page)
    expect(page.locator(f"#r-{first}")).to_have_attribute("data-viewed", "viewed")
    page.keyboard.press("j")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    with page.expect_response(re.compile("/verdict/")):
        page.keyboard.press("a")
    expect(page.locator(f"#r-{second}")).to_have_attribute("data-viewed", "OK")
    with page.expect_response(lambda request: "/seen/" in request.url and third in (request.request.post_data or "")):
        expect(page.locator(f"#r-{third}")).to_have_attribute("data-viewed", "viewed")
    page.keyboard.press("k")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    for key in "f1":
        page.keyboard.press(key)
    expect(page.locator(f"#r-{second} .tag.flag")).to_be_visible()
    expect(page.locator(f"#r-{second}")).to_have_attribute("data-viewed", "viewed")  # the flag withdraws the OK
    page.keyboard.press("u")
    expect(page.locator(f"#r-{second}")).to_have_attribute("data-viewed", "OK")
    visit.go(f"/runs/{training.uid}/steps/latest/?q=is:fine")
    assert list_row_ids(page) == [second]
    visit.go(f"/runs/{training.uid}/steps/latest/?q=is:unseen")
    expect(page.locator("#result")).to_contain_text("No samples match this query.")


def test_viewed_samples_that_the_server_refuses_for_a_while_are_sent_again(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    answers: list[dict[str, Any]] = [{"status": 403}, {"status": 429, "headers": {"Retry-After": "1"}}]
    intercept(visit.page, "**/seen/", lambda route: route.fulfill(**answers.pop(0)), times=2)
    page = visit.page
    with page.expect_response("**/seen/"):
        visit.go(f"/runs/{training.uid}/steps/latest/")
    with page.expect_response("**/seen/"):
        page.keyboard.press("j")
    with page.expect_response("**/seen/") as saved:
        pass  # without another key
    assert saved.value.json() == {"seen": 2}
    visit.clear_faults()
