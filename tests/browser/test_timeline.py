"""The timeline by keyboard: all columns are one tab stop, and keys open the next and the slowest step."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training

pytestmark = DIRECT


def test_keys_move_through_the_steps_of_the_timeline(visit: Visit, training: Training) -> None:
    points = [
        {"step": step, "values": {"timing_s/step": 90.0 if step == 4 else 30.0, "timing_s/gen": 20.0}}
        for step in range(1, 31)
    ]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message
    page = visit.go(f"/runs/{training.uid}/timeline/")
    expect(page.locator("#timeline-step-title")).to_have_text("Step 30")
    page.keyboard.press("[")
    expect(page.locator("#timeline-step-title")).to_have_text("Step 29")
    page.keyboard.press("W")
    expect(page.locator("#timeline-sentence")).to_contain_text("3.0 × the median step")
    points = [{"step": 31, "values": {"timing_s/step": 30.0}}]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message
    expect(page.locator("#phase-bars a")).to_have_count(31)
    expect(page.locator('#phase-bars a[tabindex="0"]')).to_have_count(1)  # the scripts set it, again after an update
    page.locator('#phase-bars a[tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"step=5\b"))
    expect(page.locator("#timeline-step-title")).to_have_text("Step 5")
    page.keyboard.press("x")
    page.wait_for_url("**show=share")
