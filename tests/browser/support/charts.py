"""Metrics for charts, and the charts of a page."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page

from tests.browser.support.training import Training

UNPLACED = re.compile(r"\d+ values of 0 or less are not on the logarithmic axis\.")


def log_metrics(training: Training, rate: float, steps: int = 20) -> None:
    """Metrics an hour apart: one rises, one falls, one is constant."""
    points = [
        {
            "step": step,
            "time": 3600.0 * step,
            "values": {
                "actor/up": rate * step,
                "actor/down": -rate * step,
                "actor/spike": 100.0 if step == 7 else rate * (step % 3),
                "timing_s/step": 30.0 + step,
                "timing_s/gen": 20.0 + step % 2,
                "lr": 1.0,
                "critic/score/mean": step / steps,
            },
        }
        for step in range(1, steps + 1)
    ]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message


def find_chart(page: Page, name: str) -> Any:
    return page.locator(".chart-grid figure.chart", has=page.get_by_text(name, exact=True))
