"""Panes of the samples before and after the selected one are loaded in advance."""

from __future__ import annotations

import re
import time
from itertools import cycle

from playwright.sync_api import Request, Route, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, list_row_ids
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training

pytestmark = NGINX


def test_a_key_shows_the_next_sample_without_a_request(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    first, second, _ = list_row_ids(page)
    requests: list[str] = []

    def record_request(request: Request) -> None:
        if request.headers.get("hx-target") == "sample":
            requests.append(request.url)

    page.on("request", record_request)
    deadline = time.monotonic() + 60
    for key, rendered in cycle(
        [("j", second), ("k", first)]
    ):  # until nothing that still arrives makes the page ask again
        requests.clear()
        page.keyboard.press(key)
        expect(page.locator(f"#sample article[data-id='{rendered}']")).to_be_visible()
        if not requests:
            break
        assert time.monotonic() < deadline, requests
        page.wait_for_load_state("networkidle")


def test_prefetched_panes_have_the_view_that_was_chosen_meanwhile(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    held: list[Route] = []
    several = re.compile(r"/samples/\?.*\bof=")
    intercept(visit.page, several, lambda route: route.continue_() if held else held.append(route))
    with visit.page.expect_request(several):
        page = visit.go(f"/runs/{training.uid}/steps/1/")
    page.locator("#sample [data-view=json]").click()
    expect(page.locator("#sample [data-view=json]")).to_have_attribute("aria-current", "true")
    with page.expect_request(several) as requested:
        held[0].continue_()
    assert "view=json" in requested.value.url
