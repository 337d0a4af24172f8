"""The page of a group: its keys, its folded texts, and its width."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_sample_views import HOSTILE

pytestmark = NGINX


def group(name: str, scores: list[float], answers: list[str] | None = None) -> list[dict[str, Any]]:
    result = answers or [str(n) for n in range(len(scores))]
    return [
        {
            "prompt": f"What is {name}?",
            "response": f"Beginning of {name} {n}.\n" + "so it goes on\n" * 60 + f"#### {answer}",
            "score": score,
            "group": name,
            "index": n,
        }
        for n, (score, answer) in enumerate(zip(scores, result, strict=True))
    ]


def list_scores(page: Page) -> list[str]:
    return [text.strip() for text in page.locator(".board-column .score").all_inner_texts()]


def test_one_key_opens_the_group_and_another_the_next_group_of_the_result(visit: Visit, training: Training) -> None:
    rows = [*group("a", [0.0, 0.0]), *group("b", [0.2, 0.9]), *group("c", [0.4, 0.4, 0.4])]
    training.push_and_wait(1, len(rows), rows)
    page = visit.go(f"/runs/{training.uid}/steps/1/?q=is:zerovar")
    page.keyboard.press("g")
    expect(page.locator("#board .tag.bad").first).to_have_text("ZERO VARIANCE: NO GRADIENT")
    assert list_scores(page) == ["0.00"] * 2
    page.keyboard.press("J")
    expect(page.locator(".board-column")).to_have_count(3)
    expect(page).to_have_url(re.compile(r"/groups/1/c/\?q=is:zerovar$"))
    page.keyboard.press("K")
    expect(page.locator(".board-column")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.locator("#rows tr[data-id]")).to_have_count(5)
    expect(page).to_have_url(re.compile("q=is:zerovar"))


def test_a_click_on_the_tables_group_opens_it(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2, group("a", [0.0, 1.0]))
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    page.locator("#rows td.group a").first.click()
    page.wait_for_url("**/groups/1/a/")
    page.keyboard.press("2")
    expect(page.locator(".board-column").nth(1)).to_be_focused()


def test_keys_flag_the_focused_response_select_it_for_a_finding_and_undo_the_flag(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 3, group("a", [0.0, 0.5, 1.0]))
    page = visit.go(f"/runs/{training.uid}/groups/1/a/")
    second = page.locator(".board-column").nth(1)
    page.keyboard.press("2")
    expect(second).to_be_focused()
    page.keyboard.press("f")
    expect(page.locator("#flag-here")).to_be_visible()
    expect(page.locator("#flag-here h2")).to_contain_text("Flag: Response 2")
    page.keyboard.press("1")
    expect(second.locator(".tag.flag")).to_be_visible()
    expect(page.locator(".tag.flag")).to_have_count(1)
    expect(second).to_be_focused()
    page.keyboard.press("q")
    chosen = page.locator("#adding input[name=sample]")
    expect(chosen).to_have_value(second.get_attribute("data-id") or "")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    expect(page.locator(".tag.flag")).to_have_count(0)


def test_expanded_texts_stay_open_while_others_open_and_a_step_arrives(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 12, group("a", [1.0] * 7 + [0.0] * 5, ["204"] * 7 + ["210"] * 3 + [""] * 2))
    page = visit.go(f"/runs/{training.uid}/groups/1/a/")
    expect(page.locator("#answers")).to_have_text("7 × 204 (correct), 3 × 210, 2 without an answer")
    folds = page.locator("details.fold")
    expect(folds).to_have_count(3)
    for at in (0, 1):  # by key: what opens moves what is below it
        folds.nth(at).locator("summary").press("Enter")
        expect(folds.nth(at)).to_have_attribute("open", "")
    for at in (0, 1):
        folds.nth(at).locator("[data-expand]").first.click()
        expect(page.get_by_text("Beginning of a")).to_have_count(at + 1)
    link = page.url
    training.push(2, group("a", [1.0]))
    expect(page.locator("#strip .strip-name")).to_contain_text("of 2")
    expect(page.get_by_text("Beginning of a")).to_have_count(2)
    assert visit.go(link.removeprefix(visit.site.url)).get_by_text("Beginning of a").count() == 2
    folds.nth(0).locator("[data-expand]").first.click()
    expect(page.get_by_text("Beginning of a")).to_have_count(1)
    page.keyboard.press("d")
    folds = page.locator("#board > details.fold")
    expect(folds.nth(1).locator("pre del").first).to_be_visible()
    expect(page).to_have_url(re.compile("diff=1"))
    assert folds.nth(2).locator("del").count() == 0
    folds.nth(2).locator("summary").press("Enter")
    expect(folds.nth(2).locator("pre del").first).to_be_visible()


def test_one_key_expands_and_folds_all_responses(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3, group("a", [0.0, 0.5, 1.0]))
    page = visit.go(f"/runs/{training.uid}/groups/1/a/")
    for count in (3, 0):
        page.keyboard.press("e")
        expect(page.get_by_text("Beginning of a")).to_have_count(count)


def test_the_address_changes_with_the_responses_and_stays_after_an_error(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3, group("a", [0.0, 0.5, 1.0]))
    page = visit.go(f"/runs/{training.uid}/groups/1/a/")
    link = page.url
    intercept(page, re.compile("whole="), lambda route: route.fulfill(status=503), times=1)
    page.keyboard.press("e")
    expect(page.locator(".toast")).to_have_text("The server returned status 503.")
    assert page.url == link
    held: list[Route] = []
    intercept(page, re.compile("whole="), lambda route: held.append(route), times=2)
    for number in (0, 1):
        with page.expect_request(re.compile("whole=")):
            page.locator(".board-column [data-expand]").nth(number).click()
    assert page.url == link
    for route in held:
        route.continue_()
    expect(page.get_by_text("Beginning of a")).to_have_count(2)
    assert page.url != link
    visit.clear_faults()


def test_hostile_responses_are_shown_as_text_in_wide_and_narrow_windows(visit: Visit, training: Training) -> None:
    rows = [
        {
            "prompt": text[:5000],
            "response": text,
            "score": n / 20,
            "group": HOSTILE["handlers"],
            "index": n,
            "ground_truth": text[:200],
        }
        for n, text in enumerate(HOSTILE.values())
    ]
    training.push_and_wait(1, len(rows), rows)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    page.keyboard.press("g")
    expect(page.locator("details.fold").first).to_be_visible()
    for width in (1440, 800):
        page.set_viewport_size({"width": width, "height": 800})
        assert measure_overflow(page) <= 0 and int(page.evaluate("main.scrollWidth - main.clientWidth")) <= 0
    for at in range(page.locator("details.fold").count()):
        page.locator("details.fold > summary").nth(at).click()
    for _ in range(page.locator("[data-expand]").count()):
        page.locator("[data-expand]", has_text="expand").first.click()
        page.wait_for_timeout(50)
    assert measure_overflow(page) <= 0 and int(page.evaluate("main.scrollWidth - main.clientWidth")) <= 0
    assert page.evaluate("window.__ran") is None
    assert page.locator("iframe, object, main script, main img").count() == 0
