"""The overview's charts and the list of runs in a browser: by keyboard, and as a link that a team mate opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.measure import Visit
from tests.browser.sites import NGINX
from tests.browser.training import Training

pytestmark = NGINX


def log(training: Training, rate: float, steps: int = 20) -> None:
    """Metrics an hour apart: one rises, one falls, one lies still."""
    points = [
        {
            "step": step,
            "time": 3600.0 * step,
            "values": {
                "actor/up": rate * step,
                "actor/down": -rate * step,
                "lr": 1.0,
                "critic/score/mean": step / steps,
            },
        }
        for step in range(1, steps + 1)
    ]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message


def chart(page: Page, name: str) -> Any:
    return page.locator("figure.chart", has=page.get_by_text(name, exact=True))


def test_a_link_to_charts_opens_the_same_charts_for_somebody_else(
    person: Callable[..., Visit], training: Training, mate: Any
) -> None:
    other = Training(training.product, "charts-other")
    log(training, 1.0)
    log(other, 2.0)
    page = person().go(f"/runs/{training.uid}/")
    count = page.locator("#chart-count")
    expect(count).to_have_text("3 of 3 charts")
    expect(page.locator(".constants summary")).to_have_text("constant: 1 metric")
    page.keyboard.press("/")
    page.keyboard.type("up|down")
    expect(count).to_have_text("2 of 3 charts")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    page.locator("#smooth").fill("0.5")
    page.keyboard.press("v")
    page.locator("#over-words").fill("charts-other")
    expect(page.locator("#overlay a:visible")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**runs=*")
    expect(chart(page, "actor/up").locator("i")).to_have_text(["20", "40"])
    page.locator("nav[aria-label=Axis] a", has_text="time").click()
    page.wait_for_url("**x=time*")
    for part in ("m=up|down", "log=1", "smooth=0.5", f"runs={other.uid}"):
        assert part in page.url.replace("%7C", "|"), part

    theirs = person(mate).page
    theirs.goto(page.url)
    expect(theirs.locator("#chart-count")).to_have_text("2 of 3 charts")
    expect(theirs.locator("#log")).to_have_attribute("aria-pressed", "true")
    expect(theirs.locator("#smooth-value")).to_have_text("0.5")
    expect(theirs.locator(".run-chip")).to_have_count(2)
    expect(chart(theirs, "actor/up").locator("i")).to_have_text(["20", "40"])
    theirs.locator("#metrics").fill("(")
    expect(theirs.locator("#metrics-error")).to_contain_text("Invalid pattern:")
    expect(theirs.locator("#chart-count")).to_have_text("2 of 3 charts")


def test_a_shut_group_stays_shut_and_a_point_of_a_chart_leads_to_its_step(visit: Visit, training: Training) -> None:
    log(training, 1.0)
    training.pushed(20, 4)
    page = visit.go(f"/runs/{training.uid}/?show=table")
    cells = page.locator("tr[data-metric='actor/down'] td")
    expect(cells).to_have_text(["-20", "20", "-20", "-1", "20"])
    page.locator("nav[aria-label=View] a", has_text="charts").click()
    page.locator("details.chart-group summary", has_text="actor").click()
    page.wait_for_url("**closed=actor")
    page.reload()
    expect(chart(page, "actor/up")).to_be_hidden()
    page.locator("details.chart-group summary", has_text="actor").click()
    one = chart(page, "actor/up")
    expect(one).to_have_attribute(
        "aria-label", "actor/up: 20. Press the arrow keys to move between steps, Enter to open a step."
    )
    one.focus()
    page.keyboard.press("ArrowLeft")
    expect(one).to_contain_text("20: 20")
    page.keyboard.press("ArrowLeft")
    expect(one).to_contain_text("19: 19")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#strip .strip-name")).to_contain_text("step 20")


def test_runs_are_selected_by_key_and_by_span_and_tagged_together(visit: Visit, training: Training) -> None:
    for name in ("span-a", "span-b", "span-c"):
        Training(training.product, name)
    page = visit.go("/?sort=name")
    page.locator("#name").fill("span-")
    page.wait_for_url("**name=span-&sort=name")
    boxes = page.locator("[data-pick]")
    expect(boxes).to_have_count(3)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator(".run-name").first).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("1 selected")
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("")
    boxes.nth(0).click()
    boxes.nth(2).click(modifiers=["Shift"])
    expect(page.locator("[data-picked]")).to_have_text("3 selected")
    page.locator("#tag").fill("spanned")
    page.keyboard.press("Enter")
    expect(page.locator(".banner")).to_contain_text("Tag spanned added to 3 runs.")
    expect(page.locator("#name")).to_have_value("span-")
    page.locator("a.tag", has_text="spanned").first.click()
    expect(page.locator("#name")).to_have_value("tag:spanned")
    expect(page.locator(".run-name")).to_have_count(3)
