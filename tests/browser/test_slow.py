"""Common key sequences on a slow computer with a slow server: each key acts on what it was meant for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.support.intercept import HeldRequests, intercept
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations
from tests.browser.test_group import group
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = DIRECT

MAX_BACK_OFF = 40_000  # ms. After a slow refresh a page waits up to 10 s, so that a slow server gets fewer requests.


@pytest.fixture
def slow_down(visit: Visit) -> Callable[[], None]:
    """Makes the browser's computer 6 times slower, and each answer 400 ms later."""

    def throttle() -> None:
        devtools = visit.context.new_cdp_session(visit.page)
        devtools.send("Emulation.setCPUThrottlingRate", {"rate": 6})
        conditions = {"offline": False, "latency": 400, "downloadThroughput": -1, "uploadThroughput": -1}
        devtools.send("Network.enable")
        devtools.send("Network.emulateNetworkConditions", conditions)

    return throttle


def read_shown_id(page: Page) -> str:
    return page.locator("#sample article").get_attribute("data-id") or ""


def list_flagged_ids(training: Training) -> list[str]:
    return [row["sample"] for row in training.product.get(f"flags/?run={training.uid}")["results"]]


def test_keys_on_a_slow_connection_act_on_the_selected_sample(
    visit: Visit, training: Training, slow_down: Callable[[], None]
) -> None:
    training.push_and_wait(1, 12)
    panes = HeldRequests(visit.page, "**/samples/**")
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    ids = list_row_ids(page)
    slow_down()
    for key in "jjjf1":
        page.keyboard.press(key)
    expect(page.locator("#sample")).to_have_attribute("aria-busy", "true")
    expect(page.locator(".pane-state")).to_contain_text("Loading sample")
    expect(page.locator(".pane-state")).to_contain_text("f 1")
    assert list_selected_ids(page) == [ids[3]] and page.locator("#sample article[inert]").count() == 1
    panes.release()
    expect(page.locator(f"#sample article[data-id='{ids[4]}']")).to_be_visible()
    expect(page.locator(f"#r-{ids[3]} .tag.flag")).to_be_visible()
    assert list_flagged_ids(training) == [ids[3]] and list_selected_ids(page) == [ids[4]]


def test_keys_after_enter_in_the_query_act_on_the_new_list(
    visit: Visit, training: Training, slow_down: Callable[[], None]
) -> None:
    training.push_and_wait(1, 12)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    slow_down()
    page.keyboard.press("/")
    page.keyboard.type("score>0.4")
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    expect(page.locator("#rows tr[data-id]")).to_have_count(7)
    expect(page.locator("#rows tr[data-id]").nth(1)).to_have_attribute("aria-selected", "true")
    expect(page.locator("#sample")).not_to_have_attribute("aria-busy", "true")
    assert [read_shown_id(page)] == list_selected_ids(page) == [list_row_ids(page)[1]]
    expect(page.locator("#q")).to_have_value("score>0.4")
    page.go_back()
    expect(page.locator("#rows tr[data-id]")).to_have_count(12)
    expect(page.locator("#q")).to_have_value("")


def test_a_click_on_the_bar_shows_what_has_arrived(
    visit: Visit, training: Training, slow_down: Callable[[], None]
) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    page.mouse.wheel(0, 10)  # a user reads
    slow_down()
    bar = page.locator("[data-arrived]")
    before = read_shown_id(page)
    training.push(1, [{"prompt": "new", "response": "row", "score": -1}], source="more")
    expect(bar).to_have_text("R 1 new", timeout=MAX_BACK_OFF)
    bar.click()
    expect(page.locator("#rows tr[data-id]")).to_have_count(5)
    assert list_selected_ids(page) == [before]
    training.push(2, generations(2, 6))
    expect(bar).to_have_text("R step 2 is here (6 samples)", timeout=MAX_BACK_OFF)
    page.keyboard.press("Shift+R")
    page.keyboard.press("j")
    expect(page.locator("#rows tr[data-id]").nth(1)).to_have_attribute("aria-selected", "true")
    expect(page.locator("#strip .strip-name")).to_contain_text("step 2")
    assert list_row_ids(page)[1] not in (before, list_row_ids(page)[0])


def test_a_chosen_completion_is_kept(visit: Visit, training: Training, slow_down: Callable[[], None]) -> None:
    training.push_and_wait(1, 12)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    slow_down()
    page.keyboard.press("/")
    page.keyboard.type("is:fla", delay=60)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#q")).to_have_value("is:flagged-by-others ")


def test_the_search_of_a_list_that_is_still_loading_gets_the_next_keys(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2)
    page = visit.go(f"/runs/{training.uid}/")
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.headers.get("hx-target") == "overlay":
            waiting.append(route)
        else:
            route.continue_()

    intercept(page, f"**/runs/{training.uid}/**", hold)
    page.keyboard.press("v")
    page.keyboard.type("live")
    expect(page).not_to_have_url(re.compile("log="))
    assert page.locator("#over-words").count() == 0
    waiting[0].continue_()
    expect(page.locator("#over-words")).to_have_value("live")
    expect(page.locator("#over-words")).to_be_focused()


def test_keys_pressed_before_the_scripts_load_wait_for_them(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 12)
    page = visit.page
    scripts = HeldRequests(page, re.compile(r"/js/app\.js"))
    page.goto(f"{visit.site.url}/runs/{training.uid}/steps/1/", wait_until="commit")
    expect(page.locator("#sample article")).to_be_visible()
    ids = list_row_ids(page)
    for key in ("j", "j", "f", "1", "/"):
        page.keyboard.press(key)
    page.keyboard.type("score>0.4")
    assert list_selected_ids(page) == [ids[0]] and page.locator("#q").input_value() == ""
    scripts.release()
    expect(page.locator("#q")).to_have_value("score>0.4")
    expect(page.locator("#q")).to_be_focused()
    expect(page.locator("#rows tr[data-id]")).to_have_count(7)
    wait_until(lambda: list_flagged_ids(training) == [ids[2]])  # the flag is saved while the keys go on


def test_keys_that_waited_too_long_for_the_scripts_are_named_and_not_used(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6)
    page = visit.page
    page.clock.install()
    scripts = HeldRequests(page, re.compile(r"/js/app\.js"))
    page.goto(f"{visit.site.url}/runs/{training.uid}/steps/1/", wait_until="commit")
    expect(page.locator("#sample article")).to_be_visible()
    ids = list_row_ids(page)
    page.keyboard.press("j")
    page.clock.fast_forward(16_000)
    for key in "f1":
        page.keyboard.press(key)  # these are not old, but meant for the next sample
    scripts.release()
    expect(page.locator(".toast")).to_have_text("Not used, since the page was not ready: j f 1")
    assert list_selected_ids(page) == [ids[0]] and list_flagged_ids(training) == []


def test_arrow_keys_in_a_strip_wait_for_the_scripts(visit: Visit, training: Training) -> None:
    for step in (1, 2, 3):
        training.push_and_wait(step, 2)
    page = visit.page
    scripts = HeldRequests(page, re.compile(r"/js/app\.js"))
    page.goto(f"{visit.site.url}/runs/{training.uid}/steps/1/", wait_until="commit")
    page.locator("#strip-bars a").nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")  # would open step 2 if the arrow key were lost
    page.wait_for_timeout(200)
    expect(page).to_have_url(re.compile("/steps/1/"))
    scripts.release()
    page.wait_for_url("**/steps/3/**")


def test_flag_keys_before_the_script_of_a_group_do_not_follow_the_link(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6, [*group("a", [0.0, 0.5, 1.0]), *group("b", [0.1, 0.6, 0.9])])
    scripts = HeldRequests(visit.page, "**/js/flags/inline_flag.js")
    visit.page.goto(f"{visit.site.url}/runs/{training.uid}/groups/1/a/", wait_until="commit")
    page = visit.page
    expect(page.locator(".board-column")).to_have_count(3)
    first = page.locator(".board-column").first.get_attribute("data-id")
    page.keyboard.press("f")
    page.keyboard.press("1")
    page.wait_for_timeout(200)
    expect(page).to_have_url(re.compile(r"/groups/1/a/$"))
    scripts.release()
    expect(page.locator(".tag.flag")).to_have_count(1)
    assert list_flagged_ids(training) == [first]


def test_keys_after_a_link_are_for_the_next_page(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6, [*group("a", [0.0, 0.5, 1.0]), *group("b", [0.1, 0.6, 0.9])])
    page = visit.go(f"/runs/{training.uid}/groups/1/a/")
    next_page = HeldRequests(page, "**/groups/1/b/")
    for key in "Jf1":
        page.keyboard.press(key)
    next_page.release()
    page.wait_for_url("**/groups/1/b/")
    expect(page.locator(".tag.flag")).to_have_count(1)
    assert list_flagged_ids(training) == [page.locator(".board-column").first.get_attribute("data-id")]
