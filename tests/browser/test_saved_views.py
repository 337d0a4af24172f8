"""The menu of saved views: an error keeps what one has entered."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training

pytestmark = DIRECT


def test_an_error_keeps_the_menu_open_with_what_was_entered(visit: Visit, training: Training) -> None:
    training.pushed(1, 3)
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
    visit.forgive()
    form.locator("select").select_option(training.project)
    form.get_by_role("button", name="Save view").click()
    expect(page.get_by_text("View my view saved.")).to_be_visible()
    page.locator("#views-menu > summary").click()
    expect(page.locator("#views-menu .view-list")).to_contain_text("my view")
