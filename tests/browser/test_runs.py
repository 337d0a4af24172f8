"""The run list by keyboard: the query completes, a mistake keeps the list, a group unfolds and selects its runs."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.measure import Visit
from tests.browser.sites import DIRECT
from tests.browser.training import Training, generations

pytestmark = DIRECT


def test_runs_are_queried_by_keyboard(visit: Visit, training: Training) -> None:
    training.pushed(1, 4, generations(1, 4))
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
    expect(page.locator("#q-error")).to_contain_text("Did you mean")
    expect(page.locator("#q")).to_have_attribute("aria-invalid", "true")
    expect(names.first).to_be_visible()
