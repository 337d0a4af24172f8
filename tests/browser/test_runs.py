"""The list of runs by keyboard: its query, its actions, its columns."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations

pytestmark = DIRECT


def test_runs_are_queried_by_keyboard(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4, generations(1, 4))
    page = visit.go("/")
    names, choices = page.locator(".run-name"), page.locator("#q-choices").get_by_role("option")
    expect(names.first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("sco")
    expect(choices.first).to_have_text(re.compile("^score"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#q")).to_have_value("score")
    page.keyboard.type(">=0 ")
    expect(page).to_have_url(re.compile(r"q=score"))
    expect(names.first).to_be_visible()
    page.keyboard.type("statsu:x")
    page.wait_for_timeout(400)  # no error while a user types
    expect(page.locator("#q")).to_have_attribute("aria-invalid", "false")
    page.keyboard.press("Enter")
    expect(page.locator("#q-error")).to_contain_text("Did you mean")
    expect(page.locator("#q")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#q")).to_be_focused()
    expect(names.first).to_be_visible()


def test_an_incomplete_query_is_not_sent_and_back_undoes_a_query(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4, generations(1, 4))
    page = visit.go("/")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    box, names = page.locator("#q"), page.locator(".run-name")
    expect(names.first).to_be_visible()
    page.keyboard.press("/")
    for text in ("sco", "re>", "is:arch"):
        box.fill(text)
        page.wait_for_timeout(400)
    assert [url for url in requested if "/?q=" in url] == []
    box.fill("score>=0 ")
    expect(page).to_have_url(re.compile(r"q=score(>|%3E)=0$"))
    page.keyboard.press("Enter")
    expect(names.first).to_be_focused()
    page.keyboard.press("/")
    box.fill("score>500")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No runs match this query.")).to_be_visible()
    for q in ("score>=0", ""):
        page.go_back()
        expect(box).to_have_value(q)
        expect(names.first).to_be_visible()
    page.go_forward()
    expect(box).to_have_value("score>=0")


def test_the_actions_belong_to_the_list_that_is_shown(visit: Visit, training: Training) -> None:
    page = visit.go("/")
    page.get_by_label("Show", exact=True).select_option("bin")
    expect(page.locator("#tidy [value=restore]")).to_have_count(1)
    expect(page.locator("#tidy [value=archive]")).to_have_count(0)


def test_other_columns_keep_the_query_that_is_shown(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go("/")
    summary, apply = page.locator("#picker summary"), page.get_by_role("button", name="Apply")
    visit.context.set_offline(True)
    summary.click()
    expect(page.locator("#columns")).to_have_text("Server unreachable.")
    visit.context.set_offline(False)
    summary.click()
    page.fill("#q", f"name:{training.name}")
    page.keyboard.press("Enter")
    expect(page.locator(".run-name").first).to_be_focused()
    summary.click()
    apply.click()
    expect(page).to_have_url(re.compile(r"q=name"))
    expect(page.locator("#q")).to_have_value(f"name:{training.name}")
    visit.clear_faults()


def test_the_list_shows_what_it_has_missed_when_no_run_is_selected_any_more(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/?q=name:{training.name}")
    box, step = page.locator("#runs [data-pick]"), page.locator("#runs td[data-label='step']")
    expect(step).to_have_text("1")
    box.check()
    training.push_and_wait(2, 4)
    page.wait_for_timeout(500)  # for the notification
    expect(step).to_have_text("1")
    box.uncheck()
    expect(step).to_have_text("2")
