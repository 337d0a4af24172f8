"""The settings of a project in a browser."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import PROJECT, Training

pytestmark = DIRECT


def test_a_reload_after_a_new_token_creates_no_second_one(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 1)
    page = visit.go(f"/settings/{PROJECT}/")
    tokens = page.locator("tr", has_text="laptop")
    page.get_by_placeholder("purpose").fill("laptop")
    page.get_by_role("button", name="Create token").click()
    expect(page.locator(".secret pre")).to_contain_text("rd_")
    expect(tokens).to_have_count(1)
    page.reload()
    expect(page.locator(".secret")).to_have_count(0)
    expect(tokens).to_have_count(1)
