"""Live updates of an open page: new steps, an unreachable server, several tabs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Request, Route, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Site, Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Trainer, Training, generations
from tests.browser.test_slow import HeldRequests

pytestmark = NGINX

SET_HIDDEN = """(isHidden) => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def read_count(page: Page) -> str:
    return page.locator("#found b").first.inner_text()


def test_a_new_step_appears_by_itself_and_the_address_stays_at_latest(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    page.evaluate("window.notReloaded = true")
    expect(page.locator("#alive")).to_contain_text("step 1")
    follow = page.get_by_role("button", name="follow")
    expect(follow).to_have_attribute("aria-pressed", "true")
    training.push(2, generations(2, 6))
    expect(page.locator("#rows tr[data-id]")).to_have_count(6)
    assert read_shown_steps(page) == {"2"}
    page.keyboard.press("j")  # a user reads: nothing moves any more
    expect(follow).to_have_attribute("aria-pressed", "false")
    training.push(3, generations(3, 5))
    expect(page.locator("[data-arrived]")).to_have_text("R step 3 is here (5 samples)")
    assert read_shown_steps(page) == {"2"}
    assert page.evaluate("window.notReloaded")
    assert page.url.startswith(f"{visit.site.url}/runs/{training.uid}/steps/latest/?sel=")
    page.keyboard.press("L")
    expect(page.locator("#rows tr[data-id]")).to_have_count(5)
    assert read_shown_steps(page) == {"3"}
    assert page.url == f"{visit.site.url}/runs/{training.uid}/steps/latest/"


def read_shown_steps(page: Page) -> set[str]:
    """Returns the steps that the parts of the page show."""
    parts = {
        "title": page.title(),
        "heading": page.locator("h1").first.inner_text(),
        "strip": page.locator("#strip .strip-name").inner_text(),
        "bar": page.locator("#strip a:has(.here) title").text_content() or "",
        "pin": page.locator("#pin summary").inner_text(),
        "list": f"step {page.locator('#samples').get_attribute('data-step')}",
        "row": page.locator("#rows tr[aria-selected]").inner_text(),
        "sample": page.locator("#sample .response").inner_text(),
        "origin": page.locator("#sample .origin").inner_text(),
    }
    found = {name: re.findall(r"[sS]tep (\d+)", text) for name, text in parts.items()}
    assert all(found.values()), found
    return {steps[0] for steps in found.values()}


def test_a_newer_step_waits_behind_a_bar_and_all_parts_stay_at_one_step(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    page.mouse.wheel(0, 10)  # a user reads
    reading = page.locator("#sample article").get_attribute("data-id")
    training.push_and_wait(2, 6)
    bar = page.locator("[data-arrived]")
    expect(bar).to_have_text("R step 2 is here (6 samples)")
    expect(page.locator("#strip .strip-name")).to_contain_text("of 2")
    assert read_shown_steps(page) == {"1"} and list_row_ids(page)[0] == reading
    page.keyboard.press("/")
    page.keyboard.type("score>0.2")  # a query is for the step on the page too
    page.keyboard.press("Enter")
    expect(page.locator("#rows tr[data-id]")).to_have_count(3)
    assert read_shown_steps(page) == {"1"}
    page.keyboard.press("Shift+R")
    expect(bar).to_be_hidden()
    expect(page.locator("#rows tr[data-id]")).to_have_count(4)
    assert read_shown_steps(page) == {"2"}
    page.keyboard.press("j")
    expect(page.locator("#sample article")).to_have_attribute("data-id", list_row_ids(page)[1])
    training.push_and_wait(3, 6)
    expect(bar).to_have_text("R step 3 is here (6 samples)")
    page.reload()  # the sample in the address is of step 2
    assert read_shown_steps(page) == {"2"}
    expect(bar).to_have_text("R step 3 is here (6 samples)")
    page.go_back()
    expect(page.locator("#strip .strip-name")).to_contain_text("step 3 of 3")  # the entry before had no sample
    assert read_shown_steps(page) == {"3"}


def is_page_request(route: Route) -> bool:
    """Whether the page is requested, not a panel, which has the same address."""
    return "hx-request" not in route.request.headers


def test_a_page_that_follows_new_steps_waits_before_it_tries_again(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    tried: list[float] = []

    def refuse_first(route: Route) -> None:
        if not is_page_request(route):
            return route.fallback()
        tried.append(time.monotonic())
        if len(tried) > 1:
            return route.continue_()
        return route.fulfill(status=503)

    intercept(page, re.compile(r"/steps/latest/$"), refuse_first)
    training.push(2, generations(2, 6))
    expect(page.locator(".toast")).to_have_text("The server returned status 503.")
    expect(page.locator("#rows tr[data-id]")).to_have_count(6)
    assert tried[1] - tried[0] > 0.9
    visit.clear_faults()


def test_a_query_and_a_newer_step_that_load_together_are_both_shown(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    page.mouse.wheel(0, 10)  # a user reads
    bar, box, shown = page.locator("[data-arrived]"), page.locator("#q"), page.locator("#rows tr[data-id]")
    training.push_and_wait(2, 6)
    expect(bar).to_have_text("R step 2 is here (6 samples)")
    newer = HeldRequests(page, re.compile(r"/steps/latest/$"), is_page_request)
    bar.click()
    newer.wait()
    box.fill("score<0.4")
    box.press("Enter")
    expect(shown).to_have_count(2)
    newer.release()
    expect(shown).to_have_count(3)
    assert read_shown_steps(page) == {"2"}
    training.push_and_wait(3, 5)
    expect(bar).to_have_text("R step 3 is here (5 samples)")
    query = HeldRequests(page, re.compile(r"/steps/latest/\?.*0\.7"))
    box.fill("score<0.7")
    box.press("Enter")
    query.wait()
    bar.click()
    expect(shown).to_have_count(2)
    query.release()
    expect(shown).to_have_count(4)
    assert read_shown_steps(page) == {"3"}


def test_the_page_of_a_run_without_samples_shows_the_first_samples_by_itself(visit: Visit, training: Training) -> None:
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    expect(page.locator("main")).to_contain_text("No samples received yet.")
    training.push(1, generations(1, 4))
    expect(page.locator("#rows tr[data-id]")).to_have_count(4)


def test_the_socket_is_opened_below_the_public_address(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    frames: list[str] = []
    visit.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))))
    with visit.page.expect_websocket() as opened:
        visit.go(f"/runs/{training.uid}/")
    socket = opened.value
    while not frames:  # the server has the topics of the page
        visit.page.wait_for_timeout(50)
    assert socket.url == visit.site.url.replace("http", "ws", 1) + "/ws/"
    with socket.expect_event("framereceived", lambda frame: '"step":2' in str(frame).replace(" ", "")):
        training.push(2, generations(2, 4))
    expect(visit.page.locator("#alive")).to_contain_text("step 2")


def test_a_page_catches_up_after_the_server_was_away(visit: Visit, training: Training) -> None:
    product = visit.site.product
    training.push_and_wait(1, 4)
    trainer = Trainer(training)
    trainer.train(2, 5)
    page = visit.go(f"/runs/{training.uid}/steps/all/")
    expect(page.locator("#rows tr[data-id]")).to_have_count(9)
    product.stop("web")
    expect(page.locator("#link")).to_contain_text("disconnected")
    trainer.train(3, 6)
    product.start("web")
    expect(page.locator("#rows tr[data-id]")).to_have_count(15, timeout=45_000)
    expect(page.locator("#strip .strip-name")).to_contain_text("3 steps")
    expect(page.locator("#link")).to_be_hidden()
    trainer.end()
    assert len(set(list_row_ids(page))) == 15
    assert read_count(page) == "15"
    visit.clear_faults()


def test_a_half_typed_flag_and_the_selected_row_are_kept_when_samples_arrive(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    chosen = list_row_ids(page)[1]
    page.locator(f"#r-{chosen}").click()
    expect(page.locator(f"#sample article[data-id='{chosen}']")).to_be_visible()
    page.keyboard.press("f")
    page.keyboard.press("Enter")
    page.keyboard.type("it says half a th")
    before = list_row_ids(page)
    training.push(2, generations(2, 4))
    expect(page.locator("#strip .strip-name")).to_contain_text("of 2")
    training.push(1, [*generations(1, 4, version=2), {"prompt": "new", "response": "row", "score": -1}], source="1")
    expect(page.locator("[data-arrived]")).to_have_text("R 1 new")
    expect(page.locator(".foot-keys")).to_contain_text("show new")
    page.keyboard.type("ing")
    expect(page.locator("#flag-text")).to_have_value("it says half a thing")
    expect(page.locator("#flag-text")).to_be_focused()
    assert list_selected_ids(page) == [chosen]
    assert list_row_ids(page) == before, "rows moved under the reader"
    page.keyboard.press("Enter")
    expect(page.locator("#flags .flags")).to_contain_text("it says half a thing")
    page.locator("[data-arrived]").click()
    expect(page.locator("#rows tr[data-id]")).to_have_count(5)
    assert list_selected_ids(page) == [chosen]
    assert len(set(list_row_ids(page))) == 5


def test_a_page_says_when_it_is_hidden_and_requests_nothing_meanwhile(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2)
    page, sent, requested = visit.page, list[Any](), list[str]()
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))))
    visit.go(f"/runs/{training.uid}/")
    while not sent:
        page.wait_for_timeout(50)
    page.wait_for_load_state("networkidle")  # it has followed the first notification
    page.on("request", lambda request: requested.append(request.url))
    page.evaluate(SET_HIDDEN, True)
    training.push_and_wait(2, 2)
    page.wait_for_timeout(1000)
    assert requested == []
    page.evaluate(SET_HIDDEN, False)
    expect(page.locator("#strip .strip-name")).to_contain_text("2 steps")
    topics = [f"run:{training.uid}"]
    assert sent == [{"topics": topics, "hidden": False}, {"hidden": True}, {"hidden": False}]


def test_an_update_requests_the_panels_of_a_run_together(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2)
    page, requested = visit.go(f"/runs/{training.uid}/"), list[str]()
    page.wait_for_load_state("networkidle")  # it has followed the first notification
    page.on("request", lambda request: requested.append(request.headers.get("x-panels", get_panel(request))))
    training.push_and_wait(2, 2)
    expect(page.locator("#strip .strip-name")).to_contain_text("2 steps")
    assert {*requested} == {"alive strip notices reuse events", ""}  # and the charts


def test_five_tabs_show_the_right_count_after_200_quick_dumps(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2)
    tabs = [visit.page, *(visit.context.new_page() for _ in range(4))]
    requested: dict[Page, list[str]] = {tab: [] for tab in tabs}
    for tab in tabs:
        tab.goto(f"{visit.site.url}/runs/{training.uid}/steps/all/")
        tab.on("request", lambda request, tab=tab: requested[tab].append(get_panel(request)))
    training.push_many(range(2, 202), 2)
    for tab in tabs:
        expect(tab.locator("#strip .strip-name")).to_contain_text("201 steps", timeout=120_000)
        expect(tab.locator("#found b").first).to_have_text("402")
        assert len(set(list_row_ids(tab))) == len(list_row_ids(tab)) == 50
    for panels in requested.values():
        assert 0 < panels.count("result") < 100, "notifications are not combined"


def get_panel(request: Request) -> str:
    return request.headers.get("hx-target", "")


def test_a_page_without_a_socket_polls_the_server(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    visit.page.route_web_socket(re.compile("/ws/"), lambda socket: socket.close())
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    expect(page.locator("#link")).to_contain_text("disconnected")
    training.push(2, generations(2, 6))
    expect(page.locator("#rows tr[data-id]")).to_have_count(6, timeout=12_000)


def test_a_proxy_that_removes_the_prefix_serves_the_same_page(
    site: Site, open_visit: Callable[..., Visit], training: Training
) -> None:
    if not site.stripping_url:
        return
    training.push_and_wait(1, 4)
    visit = open_visit()
    with visit.page.expect_websocket() as opened:
        visit.page.goto(f"{site.stripping_url}/runs/{training.uid}/steps/latest/")
    with opened.value.expect_event("framereceived"):
        training.push(2, generations(2, 6))
    expect(visit.page.locator("#rows tr[data-id]")).to_have_count(6)
