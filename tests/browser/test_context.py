"""The page that compares the configuration of two runs."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training

pytestmark = DIRECT


def test_unfolded_keys_stay_open_and_arrow_keys_pass_other_runs(visit: Visit, training: Training) -> None:
    others = [training.start_another(name) for name in ("second", "third")]
    for number, run in enumerate([training, *others]):
        configure(run, number)
    page = visit.go(f"/runs/{training.uid}/context/")
    against = page.locator("#against")
    against.focus()
    against.press("ArrowDown")
    against.press("ArrowDown")
    expect(page).to_have_url(re.compile("/context/$"))
    against.press("Enter")
    expect(page).to_have_url(re.compile(f"against={against.locator('option').nth(2).get_attribute('value')}"))
    fold = page.locator("[data-fold]")
    page.locator(".context-chips a", has_text="all").click()
    fold.first.click()
    expect(fold.first).to_have_attribute("aria-expanded", "true")
    configure(training, 7.5)
    training.push_and_wait(1, 4)
    expect(page.locator("#config")).to_contain_text("7.5")
    expect(fold.first).to_have_attribute("aria-expanded", "true")
    expect(page.locator(".config-folded .config-key, .config-folded tr").first).to_be_visible()


def configure(training: Training, lr: float) -> None:
    config = {"actor": {"lr": lr, "n": 8, "clip": 0.2}}
    message = training.server.send_json("PATCH", f"runs/{training.uid}/", {"config": config})
    assert message.is_success, message.error_message
