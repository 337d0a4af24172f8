"""The menu of saved views: saving, and errors that keep the entered values."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training

pytestmark = DIRECT


def test_an_error_keeps_the_menu_open_with_what_was_entered(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go("/")
    page.locator("#views-menu > summary").click()
    form = page.locator("#views-menu .view-save")
    form.locator("[name=name]").fill("my view")
    form.locator("[name=shared]").check()
    form.locator("select").select_option("")
    form.get_by_role("button", name="Save view").click()
    expect(form.get_by_role("alert")).to_have_text("Choose a project to share the view with.")
    expect(form.locator("[name=name]")).to_have_value("my view")
    expect(form.locator("[name=shared]")).to_be_checked()
    visit.clear_faults()
    form.locator("select").select_option(training.project)
    form.get_by_role("button", name="Save view").click()
    expect(page.get_by_text("View my view saved.")).to_be_visible()
    page.locator("#views-menu > summary").click()
    expect(page.locator("#views-menu .view-list")).to_contain_text("my view")


def test_the_menu_of_the_overview_lists_views_and_saves_one(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/runs/{training.uid}/?closed=timing_s")
    page.locator("#views-menu > summary").click()
    form = page.locator("#views-menu .view-save")
    shared = form.locator("[name=shared]").bounding_box()
    assert shared and shared["width"] < 30  # next to its words
    form.locator("[name=name]").fill("folded")
    form.get_by_role("button", name="Save view").click()
    expect(page.get_by_text("View folded saved.")).to_be_visible()
    page.locator("#views-menu > summary").click()
    expect(page.locator("#views-menu .view-list a").first).to_have_attribute("href", re.compile("closed=timing_s"))


def test_the_list_is_requested_again_after_an_error(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/runs/{training.uid}/")
    intercept(page, "**/views/?*", lambda route: route.abort())
    page.locator("#views-menu > summary").click()
    expect(page.locator("#views-list")).not_to_contain_text("Loading views")
    page.unroute("**/views/?*")
    visit.clear_faults()
    for _click in range(2):
        page.locator("#views-menu > summary").click()
    expect(page.locator("#views-menu .view-save")).to_be_visible()
