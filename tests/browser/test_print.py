"""Printed pages have their content in black on white, without bars, key hints and forms."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.support.charts import log_metrics
from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_pins import plan_steps

pytestmark = DIRECT

CONTROLS = "kbd, button:not([data-fold]), .button, input, select, form:not(#plan-form)"  # the plan is inside of a form
HIDDEN = f".top, .foot, main :is({CONTROLS})"


@pytest.mark.parametrize("page_kind", [
        "step", "sample", "compare", "overview", "finding", "pins", "timeline", "context", "runs"
    ])  # fmt: skip
def test_a_printed_page_has_only_the_content(visit: Visit, training: Training, page_kind: str) -> None:
    long = "\n".join(f"line {n} of the response" for n in range(200)) + "\n#### 42"
    for step in (1, 2):
        rows = [{"prompt": f"{step} {n}", "response": long, "score": n / 4, "data_source": "s"} for n in range(4)]
        training.push_and_wait(step, 4, rows)
    log_metrics(training, 1e-6)
    if page_kind == "pins":
        plan_steps(training, 2, "printed")
    page = visit.go("/")
    page.emulate_media(color_scheme="dark")
    sample = training.list_samples(1)[0]["id"]
    run, of = f"/runs/{training.uid}", f"{training.uid}@1,{training.uid}@2"
    if page_kind == "finding":
        visit.go(f"/findings/add/?sample={sample}")
        page.select_option("#add-to", "")  # the last used finding is chosen
        page.get_by_label("Title").fill("Printed")
        page.locator("main form button:not([type=button])").first.click()
        page.wait_for_url("**/findings/*/")
    else:
        paths = {
            "step": f"{run}/steps/1/",
            "sample": f"/samples/{sample}/",
            "compare": f"/compare/?of={of}&split=train",
            "overview": f"{run}/",
            "pins": f"/pins/?project={training.project}&plan=printed",
            "timeline": f"{run}/timeline/",
            "context": f"{run}/context/",
            "runs": "/",
        }
        visit.go(paths[page_kind])
    shown = {
        "step": "#sample .response", "sample": "#sample .response", "compare": ".measures",
        "finding": ".exhibit details[open] pre", "overview": "main .legend-bar",
        "pins": "#plan-lines .replays", "timeline": ".timeline-bar b", "context": "#context-command",
        "runs": ".run-name",
    }[page_kind]  # fmt: skip
    expect(page.locator(shown).first).to_be_visible()
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator(shown).last).to_be_visible()
    assert (
        page.locator(HIDDEN).evaluate_all("all => all.filter(one => one.offsetParent).map(one => one.outerHTML)") == []
    )
    if page_kind == "pins":  # what fields hold is on paper as text
        lines = page.locator("#plan-lines tbody tr:not(.fold, .others) td:first-child")
        assert [text.strip() for text in lines.all_inner_texts()] == ["4", "97"]
        expect(page.get_by_text(f"{training.project} · plan printed")).to_be_visible()
        expect(page.locator("#plan-form")).to_contain_text("cache")
    colours = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    assert colours == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    page.set_viewport_size({"width": 720, "height": 1000})  # about an A4 page
    assert measure_overflow(page) <= 0
    if page_kind in ("step", "sample"):  # nothing scrolls: all lines are on paper
        cut = page.locator("#sample .text").evaluate_all(
            "all => all.filter(one => one.scrollHeight > one.clientHeight + 2).length"
        )
        assert cut == 0 and int(page.evaluate("document.documentElement.scrollHeight")) > 3000
