"""The large view of one chart: its zoom, its frame, its points and its step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.support.charts import UNPLACED, chart, log
from tests.browser.support.measure import Visit
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training

pytestmark = NGINX


def test_the_large_view_clips_zooms_names_what_is_outside_and_can_be_downloaded(
    person: Callable[..., Visit], training: Training, mate: Any
) -> None:
    log(training, 1.0)
    page = person().go(f"/runs/{training.uid}/?chart=actor/spike")
    large = page.locator("#large")
    expect(large.locator("tbody td")).to_have_text(["2", "0 – 100"])
    large.locator("[data-large=low]").fill("0")
    large.locator("[data-large=high]").fill("5")
    page.keyboard.press("Enter")
    expect(large.locator("[data-large=outside]")).to_contain_text("1 point outside of the range: ")
    expect(large.locator("[data-large=outside]")).to_contain_text(", step 7: 100")
    large.locator("[data-large=low]").fill("9")
    page.keyboard.press("Enter")
    expect(large.locator("#range-error")).to_have_text("The first number must be smaller than the second.")
    large.locator("[data-large=low]").fill("")  # an open end
    page.keyboard.press("Enter")
    page.wait_for_url("**y=..5**")
    expect(large.locator("#range-error")).to_be_hidden()
    large.locator("[data-large=low]").fill("0")
    page.keyboard.press("Enter")
    page.locator("#log").evaluate("(button) => button.click()")
    expect(large.locator("#range-error")).to_contain_text("A logarithmic axis has no numbers from 0 down")
    expect(large.locator("[data-large=outside]")).to_contain_text(UNPLACED)
    page.locator("#log").evaluate("(button) => button.click()")
    expect(large.locator("#range-error")).to_be_hidden()
    plot = large.locator("[data-large=plot] .u-over")
    size = plot.bounding_box()
    assert size
    page.mouse.move(size["x"] + size["width"] * 0.55, size["y"] + 50)
    page.mouse.down()
    page.mouse.move(size["x"] + size["width"] * 0.95, size["y"] + 60, steps=3)
    page.mouse.up()
    page.wait_for_url("**zoom=**")
    expect(large.locator("[data-large=outside]")).to_be_hidden()
    with page.expect_download() as download:
        large.get_by_role("button", name="CSV").click()
    csv = download.value.path().read_text().splitlines()
    assert csv[0].startswith("step,") and csv[1:3] == ["12,0", "13,1"]
    with page.expect_download() as download:
        large.get_by_role("button", name="PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG") and download.value.suggested_filename.endswith(
        ".png"
    )
    url = page.url

    theirs = person(mate).page
    theirs.goto(url)
    expect(theirs.locator("#large h2")).to_have_text("actor/spike")
    expect(theirs.locator("#large [data-large=high]")).to_have_value("5")
    expect(theirs.locator("[data-large=reset]")).to_be_enabled()
    theirs.keyboard.press("0")
    theirs.wait_for_url(lambda url: "zoom=" not in url)
    theirs.keyboard.press("k")
    theirs.wait_for_url("**chart=actor/down**")
    theirs.keyboard.press("Escape")
    expect(chart(theirs, "actor/down")).to_be_focused()


def test_the_frame_below_the_large_chart_moves_the_zoom(visit: Visit, training: Training) -> None:
    log(training, 1.0)
    page = visit.go(f"/runs/{training.uid}/?chart=actor/up&zoom=5..10")
    frame = page.locator("#large .zoom-frame")
    size = frame.bounding_box()
    assert size
    page.mouse.move(size["x"] + 10, size["y"] + 10)
    page.mouse.down()
    page.mouse.move(size["x"] + 10 + size["width"], size["y"] + 12, steps=20)
    page.wait_for_timeout(50)
    moved = frame.bounding_box()
    assert moved and moved["x"] == pytest.approx(size["x"] + size["width"], abs=1) and "zoom=5..10" in page.url
    page.mouse.up()
    page.wait_for_url(lambda url: "zoom=5..10" not in url)
    low, high = map(float, re.findall(r"zoom=([\d.]+)\.\.([\d.]+)", page.url)[0])
    assert (low, high) == pytest.approx((10, 15), abs=0.1)
    page.keyboard.press("x")
    page.wait_for_url("**x=time*")
    assert "zoom=" not in page.url  # it was in steps


def test_the_large_chart_has_all_points_also_later_ones_and_keeps_its_step(visit: Visit, training: Training) -> None:
    log(training, 1.0, steps=700)
    held: list[Route] = []
    visit.page.route(re.compile("/metrics/.max_points"), lambda route: held.append(route))
    page = visit.go(f"/runs/{training.uid}/?chart=actor/spike")
    here, last = page.locator("#large aside header b"), page.locator("#large tbody td")
    expect(last).to_have_text(["1", "0 – 100"])
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    expect(here).to_contain_text("step 6")
    step = here.inner_text()
    with page.expect_response(re.compile("/metrics/.max_points")):
        held[0].continue_()
    page.unroute_all()
    page.wait_for_timeout(300)
    expect(here).to_have_text(step)
    log(training, 1.0, steps=704)
    expect(last.nth(1)).to_have_text("2")
    expect(here).to_have_text(step)
    page.keyboard.press("ArrowRight")
    expect(here).to_have_text(f"step {int(step.split()[1]) + 1}")  # all points
