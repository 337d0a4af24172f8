"""The large view of one chart: its zoom, its frame, its points and its step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.support.charts import UNPLACED, find_chart, log_metrics
from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training, generations

pytestmark = NGINX


def test_the_large_chart_clips_zooms_names_points_outside_and_can_be_downloaded(
    open_visit: Callable[..., Visit], training: Training, mate: Any
) -> None:
    log_metrics(training, 1.0)
    page = open_visit().go(f"/runs/{training.uid}/?chart=actor/spike")
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
    page.keyboard.press("0")
    page.wait_for_url(lambda url: "zoom=" not in url)
    large.locator("h2").click()
    assert large.locator("[data-large=reset]").is_disabled(), "a click is not the end of the drag again"

    other = open_visit(mate).page
    other.goto(url)
    expect(other.locator("#large h2")).to_have_text("actor/spike")
    expect(other.locator("#large [data-large=high]")).to_have_value("5")
    expect(other.locator("[data-large=reset]")).to_be_enabled()
    other.keyboard.press("0")
    other.wait_for_url(lambda url: "zoom=" not in url)
    other.keyboard.press("k")
    other.wait_for_url("**chart=actor/down**")
    other.keyboard.press("Escape")
    expect(find_chart(other, "actor/down")).to_be_focused()


def test_the_frame_below_the_large_chart_moves_the_zoom(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
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


def test_the_large_chart_loads_all_points_also_later_ones_and_keeps_its_step(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0, steps=700)
    held: list[Route] = []
    intercept(visit.page, re.compile("/metrics/.max_points"), lambda route: held.append(route))
    page = visit.go(f"/runs/{training.uid}/?chart=actor/spike")
    position, last = page.locator("#large aside header b"), page.locator("#large tbody td")
    expect(last).to_have_text(["1", "0 – 100"])
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    expect(position).to_contain_text("step 6")
    step = position.inner_text()
    with page.expect_response(re.compile("/metrics/.max_points")):
        held[0].continue_()
    page.unroute_all()
    page.wait_for_timeout(300)
    expect(position).to_have_text(step)
    log_metrics(training, 1.0, steps=704)
    expect(last.nth(1)).to_have_text("2")
    expect(position).to_have_text(step)
    page.keyboard.press("ArrowRight")
    expect(position).to_have_text(f"step {int(step.split()[1]) + 1}")  # all points


def test_the_large_chart_loads_all_points_of_short_attempts_and_of_the_attempt_of_the_page(
    visit: Visit, training: Training
) -> None:
    log_metrics(training, 1.0, steps=70)
    for first in range(1, 700, 50):  # the small chart has few points of each: all are downsampled together
        points = [{"step": step, "values": {"part/loss": 1 / step}} for step in range(first, first + 50)]
        log_points(training, points, attempt=f"from-{first}")
    for query, attempt in (("chart=part/loss", "current"), ("attempt=a&chart=actor/up", "a")):
        with visit.page.expect_response(re.compile("/metrics/.max_points")) as response:
            visit.go(f"/runs/{training.uid}/?{query}")
        assert f"attempt={attempt}&" in response.value.url


def log_points(training: Training, points: list[dict[str, Any]], attempt: str = "a") -> None:
    data = {"attempt": attempt, "points": points}
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", data)
    assert message.is_success, message.error_message


def test_parts_of_a_reward_are_stacked_by_attempt_though_they_have_points_at_different_steps(
    visit: Visit, training: Training
) -> None:
    parts = [{"reward_parts/a": 10 + step % 7 / 100, "reward_parts/b": 1 + step % 5 / 100} for step in range(700)]
    points = [{"step": step, "values": values} for step, values in enumerate(parts)]
    for attempt in ("a", "b"):
        log_points(training, points, attempt)
    # The points of the small charts stay.
    intercept(visit.page, re.compile("/metrics/.max_points"), lambda route: route.fulfill(json={"series": {}}))
    page = visit.go(f"/runs/{training.uid}/?attempt=all&chart=reward%20parts&y=5..20")
    expect(page.locator("#large tbody tr")).to_have_count(4)
    expect(page.locator("#large [data-large=outside]")).to_be_hidden()  # the upper part is at 11, never at 1 or 22


def test_a_chart_of_a_query_has_the_hours_of_all_attempts_and_adds_new_steps(visit: Visit, training: Training) -> None:
    log_metrics(training, 1.0)
    log_points(
        training, [{"step": step, "time": 3600.0 * step, "values": {"actor/up": 1.0}} for step in (24, 25, 26)], "b"
    )
    for step in (3, 25):
        training.push_and_wait(step, 4)
    page = visit.go(f"/runs/{training.uid}/?x=time&ask=score|train||&chart=query:score|train||")
    values, position = page.locator("#large tbody td"), page.locator("#large aside header b")
    expect(values).to_have_text(["0.375", "0.375 – 0.375"])
    page.keyboard.press("ArrowLeft")
    expect(position).to_have_text("24 h")
    training.push_and_wait(26, 4, [{**row, "score": 1.0} for row in generations(26, 4)])
    expect(values).to_have_text(["0.375", "1", "0.375 – 1"])
    expect(position).to_have_text("24 h")


def test_the_sidebar_of_the_large_chart_links_samples_of_its_split_also_without_lines(
    visit: Visit, training: Training
) -> None:
    other = training.start_another("charts-side")
    log_metrics(training, 1.0)
    for run in (training, other):
        log_points(run, [{"step": step, "values": {"eval_reward": step / 4}} for step in (1, 2)])
    training.push_and_wait(20, 4)
    message = training.server.send_json("POST", "flags/", {"sample": training.list_samples(20)[0]["id"]})
    assert message.is_success, message.error_message
    page = visit.go(f"/runs/{training.uid}/?chart=eval_reward")
    large = page.locator("#large")
    expect(large.locator("aside header a")).to_have_attribute("href", re.compile(r"/nearest/2/\?split=eval$"))
    visit.go(f"/runs/{training.uid}/?runs={other.uid}&chart=seconds")
    expect(large.locator("tbody tr")).to_have_count(2)
    large.locator("[data-large=run]").select_option(other.uid)
    expect(large.locator("tbody tr")).to_have_count(0)
    expect(large.locator("aside li a")).to_have_attribute("href", re.compile(f"/runs/{training.uid}/nearest/20/$"))
