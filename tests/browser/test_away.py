"""While the server is away: the page says so, no key acts on another sample, and no flag is lost."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Members
from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations
from tests.browser.test_slow import list_flagged_ids

pytestmark = DIRECT


def stop_retries(page: Page) -> None:
    """Stops the clock of the page after one more try: then only the button tries again."""
    with page.expect_event("requestfailed"):
        page.clock.pause_at(float(page.evaluate("Date.now()")) / 1000 + 60)
    page.wait_for_timeout(500)  # for a try that was already on its way


def test_the_pane_says_that_a_sample_is_not_loaded_and_refuses_keys(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6)
    visit.page.clock.install()
    away = False

    def answer(route: Route) -> None:
        if "/samples/?" in route.request.url:
            route.fulfill(json={})  # nothing is there in advance
        elif away:
            route.abort()
        else:
            route.continue_()

    intercept(visit.page, re.compile("/samples/"), answer)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    ids = list_row_ids(page)
    away = True
    page.keyboard.press("j")
    state = page.locator("#sample .pane-state")
    expect(state).to_contain_text(re.compile(r"Server unreachable. This sample is not loaded, retrying in \d s."))
    for key in "f1":
        page.keyboard.press(key)
    expect(page.locator(".toast")).to_have_text("Not used, since the sample is not loaded: 1")
    assert list_selected_ids(page) == [ids[1]]
    page.keyboard.press("j")
    expect(page.locator("#sample")).to_have_class(re.compile("failed"))
    stop_retries(page)
    expect(page.locator("#sample")).to_have_class(re.compile("failed"))
    away = False
    state.get_by_role("button", name="Try now").click()
    page.clock.resume()
    expect(page.locator("#sample article")).to_have_attribute("data-id", ids[2])
    assert list_selected_ids(page) == [ids[2]] and list_flagged_ids(training) == []
    page.keyboard.press("f")
    expect(page.locator("#flag-box form")).to_be_visible()
    visit.clear_faults()


def test_a_flag_waits_until_its_person_has_signed_in_again(visit: Visit, members: Members, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    first, second = list_row_ids(page)[:2]
    page.wait_for_load_state("networkidle")
    session = [cookie for cookie in visit.context.cookies() if "csrf" not in str(cookie.get("name"))]
    visit.context.clear_cookies()  # as after "sign out" in another tab
    for key in ("f", "Enter"):
        page.keyboard.press(key)
    page.keyboard.type("odd")
    page.keyboard.press("Enter")
    expect(page.locator("#unsaved")).to_contain_text("You are signed out.")
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved")
    visit.context.add_cookies(members.add(training.project, "zoe")["cookies"])
    other = visit.context.new_page()
    home = page.url.split("/runs/")[0]
    with page.expect_response(lambda response: response.url.endswith("/flags/") and response.status == 403):
        other.goto(home)
        page.locator("#unsaved button").first.click()
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved")
    assert list_flagged_ids(training) == [], "it is not saved as a flag of another person"
    visit.context.clear_cookies()
    visit.context.add_cookies(session)  # type: ignore[arg-type]
    other.goto(home)  # the session has another token for forms now
    expect(page.locator("#unsaved")).to_be_hidden(timeout=20_000)
    assert list_flagged_ids(training) == [first]
    page.keyboard.press("f")
    intercept(page, "**/flags/", lambda route: route.fulfill(status=400, json={"message": "refused"}))
    page.keyboard.press("Enter")
    page.keyboard.type("a long comment")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_have_text("refused")
    expect(page.locator("#flag-box [name=text]")).to_have_value("a long comment")
    visit.clear_faults()


def test_a_search_that_fails_can_be_continued_and_never_shows_the_sign_in_page(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 4)
    page = visit.go("/search/")
    intercept(page, "**/more/**", lambda route: route.fulfill(status=502))
    page.locator("main").evaluate("""main => {
      main.innerHTML = '<div class="searching" id="search-more" hx-get="/more/" hx-trigger="load" hx-swap="outerHTML">'
        + '0 of 2 <button type="button">stop</button></div>';
      htmx.process(main);
    }""")
    expect(page.locator(".toast")).to_have_text("The server returned status 502.")
    expect(page.locator("#search-more")).to_contain_text("stopped")
    page.unroute_all()
    intercept(page, "**/more/**", lambda route: route.fulfill(body='<p id="search-more">continued</p>'))
    page.locator("#search-more").get_by_role("button", name="Try now").click()
    expect(page.locator("#search-more")).to_have_text("continued")
    visit.context.clear_cookies()
    page.locator("main").evaluate("""main => {
      main.innerHTML = `<div id="part" hx-get="${document.body.dataset.root}live/" hx-trigger="load"></div>`;
      htmx.process(main);
    }""")
    page.wait_for_url(re.compile("/sign-in/"))
    visit.clear_faults()


def test_an_undo_without_a_clear_answer_is_not_sent_again(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(page.locator("#figures")).to_contain_text("flagged1")
    tried: list[str] = []

    def answer(route: Route) -> None:
        tried.append(route.request.url)
        route.fulfill(status=503 if len(tried) == 1 else 502)

    intercept(page, "**/undo/", answer)
    page.keyboard.press("u")
    expect(page.locator(".toast")).to_have_text("The undo may have been done. Look, then press u again.")
    page.wait_for_timeout(1500)
    assert len(tried) == 2
    visit.clear_faults()


def test_turned_off_keys_do_not_choose_a_reason(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    box = page.locator("#flag-box")
    page.keyboard.press("f")
    expect(box.locator("form")).to_be_visible()
    page.evaluate("document.body.dataset.keys = 'off'")
    page.keyboard.press("1")
    page.wait_for_timeout(300)
    expect(box.locator("form")).to_be_visible()
    page.evaluate("delete document.body.dataset.keys")
    page.evaluate("document.querySelector('#help').showModal()")
    page.keyboard.press("1")
    page.wait_for_timeout(300)
    page.keyboard.press("Escape")
    expect(box.locator("form")).to_be_visible()
    assert list_flagged_ids(training) == []


def test_a_flag_is_kept_over_a_reload_until_it_is_saved(visit: Visit, training: Training) -> None:
    visit.context.remove_listener("dialog", visit.record_dialog)
    visit.page.on("dialog", lambda dialog: dialog.accept())  # the browser asks: something is not saved
    training.push_and_wait(1, 6)
    visit.page.clock.install()
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    first, second = list_row_ids(page)[:2]
    away = True

    def answer(route: Route) -> None:
        if away:
            route.abort()
        else:
            route.continue_()

    intercept(page, "**/flags/", answer)
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved, retrying in")
    assert list_selected_ids(page) == [second]
    page.keyboard.press("k")
    expect(page.locator("#flags")).to_contain_text("Your flag of this sample is not saved, retrying.")
    page.wait_for_url(f"**sel={first}")
    page.reload()
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved, retrying in")
    assert list_flagged_ids(training) == []
    stop_retries(page)
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved, retrying in")
    away = False
    page.get_by_role("button", name="Try now").click()
    page.clock.resume()
    expect(page.locator("#unsaved")).to_be_hidden()
    expect(page.locator(f"#r-{first} .tag.flag")).to_be_visible()
    expect(page.locator("#flags .flags li")).to_have_count(1)
    assert list_flagged_ids(training) == [first]
    visit.clear_faults()


def test_a_flag_is_sent_from_the_next_page_which_says_why_it_is_refused(visit: Visit, training: Training) -> None:
    visit.context.remove_listener("dialog", visit.record_dialog)
    visit.page.on("dialog", lambda dialog: dialog.accept())  # the browser asks: something is not saved
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    first = list_row_ids(page)[0]

    def answer(route: Route) -> None:
        if "/steps/" in route.request.frame.url:
            route.abort()
        else:
            route.fulfill(status=400, json={"message": "refused"})

    intercept(page, "**/flags/", answer)
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(page.locator("#unsaved")).to_contain_text("1 change is not saved, retrying in")
    visit.go("/findings/")
    expect(page.locator("p.toast")).to_have_text(f"Sample {first[:16]}: refused")
    visit.clear_faults()


def test_what_is_typed_stays_when_the_session_ends(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    page.wait_for_load_state("networkidle")
    for key in ("f", "Enter"):
        page.keyboard.press(key)
    comment = page.locator("#flag-box [name=text]")
    comment.fill("half a comment")
    visit.context.clear_cookies()
    training.push(1, generations(1, 5), source="more")  # the page requests its parts, and gets the sign-in page
    expect(page.locator(".toast")).to_contain_text("You are signed out.")
    expect(comment).to_have_value("half a comment")
    comment.fill("")
    training.push(1, generations(1, 6), source="even more")
    page.wait_for_url(re.compile("/sign-in/"))
    visit.clear_faults()


@pytest.mark.parametrize(
    ("path", "field"), [("/runs/{uid}/steps/1/", "#flag-box [name=text]"), ("/review/?run={uid}", "#verdict-text")]
)
def test_a_comment_on_a_sample_that_was_left_stays_when_the_session_ends(
    visit: Visit, training: Training, path: str, field: str
) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(path.format(uid=training.uid))
    second = list_row_ids(page)[1]
    page.keyboard.press("f")  # opens the box on the page of a step
    page.locator(field).fill("half a comment")
    page.locator(f"#r-{second}").click()
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    page.wait_for_load_state("networkidle")
    visit.context.clear_cookies()
    training.push(1, generations(1, 5), source="more")  # the page requests its parts, and gets the sign-in page
    expect(page.locator(".toast")).to_contain_text("You are signed out.")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    visit.clear_faults()


def test_a_newer_step_does_not_replace_what_is_typed_by_the_sign_in_page(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    comment, arrived = page.locator("#flag-box [name=text]"), page.locator("[data-arrived]")
    page.keyboard.press("f")
    comment.fill("half a comment")
    training.push_and_wait(2, 4)
    expect(arrived).to_contain_text("step 2 is here")
    visit.context.clear_cookies()
    arrived.click()
    expect(page.locator(".toast")).to_contain_text("You are signed out.")
    expect(comment).to_have_value("half a comment")
    visit.clear_faults()
