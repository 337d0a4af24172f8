"""The history of a prompt: keys open another step, and the word diff."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_compare import HOLD_FIRST_DIFF, LONG_TEXT
from tests.browser.test_slow import HeldRequests
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = DIRECT

# A comparison in a worker fails: it gets no texts.
BREAK_DIFFS = """() => {
  const { postMessage } = Worker.prototype;
  Worker.prototype.postMessage = function () { postMessage.call(this, {}); };
}"""


def build_answer(step: int, right: bool) -> list[dict[str, Any]]:
    text = f"<img src=x onerror=alert(1)> At step {step} we add.\n#### {4 if right else 5}"
    return [{"prompt": "What is 2 + 2?", "response": text, "score": float(right), "acc": int(right), "group": "a"}]


def test_keys_move_through_the_steps_of_a_prompt_and_show_what_changed(visit: Visit, training: Training) -> None:
    for step, right in [(1, False), (2, True), (3, False)]:
        training.push_and_wait(step, 1, build_answer(step, right))
    other_run = training.start_another("beside")
    other_run.push_and_wait(1, 1, build_answer(1, True))
    key = visit.site.product.get(f"samples/{training.list_samples(1)[0]['id']}/")["prompt_key"]
    page = visit.go(f"/runs/{training.uid}/prompts/{key}/")
    page.evaluate("window.notReloaded = true")
    other = page.locator(f"#history-lines th a[href*='{other_run.uid}']")
    expect(page.locator("#lines .facts")).to_contain_text("REGRESSED")
    expect(page.locator("[data-text=selected]")).to_contain_text("At step 3 we add.")
    page.keyboard.press("d")
    expect(page.locator("[data-diff] del")).to_contain_text(["2", "4"])
    expect(page.locator("[data-diff] ins")).to_contain_text(["3", "5"])
    expect(page.locator("[data-diff]")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.locator("[data-text=selected]")).to_be_hidden()
    page.keyboard.press("[")
    expect(page.locator("#lines .facts")).to_be_visible()
    expect(page.locator("[data-diff] ins")).to_contain_text(["2", "4"])
    expect(page).to_have_url(re.compile(r"\?at=2&view=diff$"))
    assert page.evaluate("window.notReloaded")
    page.go_back()
    expect(page.locator("[data-diff] ins")).to_contain_text(["3", "5"])
    page.keyboard.press("d")
    expect(page.locator("[data-text=selected]")).to_contain_text("At step 3 we add.")
    page.evaluate("window.notReloaded = true")  # a key right after going back may follow its link as a link
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(page.locator("#history .one-text .tag.flag")).to_have_count(1)
    expect(page.locator("#history tr .tag.flag")).to_have_count(1)
    page.keyboard.press("u")
    expect(page.locator("#history .tag.flag")).to_have_count(0)
    page.locator("#answers .tail a").click()
    expect(page).to_have_url(re.compile("sel="))
    expect(other).to_have_attribute("href", re.compile("vs="))
    training.push(4, build_answer(4, True))
    expect(page.locator("#lines .facts")).to_contain_text("again since step 4")
    expect(other).to_have_attribute("href", re.compile("vs="))  # with the selected response
    assert page.evaluate("window.notReloaded")
    page.set_viewport_size({"width": 800, "height": 900})
    assert measure_overflow(page) <= 0


def test_the_address_changes_with_the_page_and_stays_after_an_error(visit: Visit, training: Training) -> None:
    for step in (1, 2):
        training.push_and_wait(step, 1, build_answer(step, True))
    key = visit.site.product.get(f"samples/{training.list_samples(1)[0]['id']}/")["prompt_key"]
    page = visit.go(f"/runs/{training.uid}/prompts/{key}/")
    link, text = page.url, page.locator("[data-text=selected]")
    intercept(page, re.compile("at=1"), lambda route: route.fulfill(status=503), times=1)
    page.keyboard.press("[")
    expect(page.locator(".toast")).to_have_text("The server returned status 503.")
    assert page.url == link
    loads = HeldRequests(page, re.compile("at=1"))
    page.keyboard.press("[")
    loads.wait()
    assert page.url == link
    loads.release()
    expect(text).to_contain_text("At step 1 we add.")
    assert page.url.endswith("?at=1")
    page.go_back()
    expect(text).to_contain_text("At step 2 we add.")
    assert page.url == link
    visit.clear_faults()


def test_a_slow_diff_is_not_shown_for_other_responses(visit: Visit, training: Training) -> None:
    for step in (1, 2, 3):
        training.push_and_wait(
            step, 1, [{"prompt": "ask", "response": f"{LONG_TEXT}#### {step}", "score": 0.0, "group": "a"}]
        )
    key = visit.site.product.get(f"samples/{training.list_samples(1)[0]['id']}/")["prompt_key"]
    page = visit.go(f"/runs/{training.uid}/prompts/{key}/")
    page.evaluate(HOLD_FIRST_DIFF)
    page.keyboard.press("d")
    wait_until(lambda: page.evaluate("Boolean(window.held)"))
    page.keyboard.press("[")
    expect(page.locator("[data-diff] ins")).to_have_text("2")
    page.evaluate("held()")
    expect(page.locator("[data-diff] ins")).to_have_text("2")
    page.evaluate(BREAK_DIFFS)
    page.keyboard.press("]")
    expect(page.locator("[data-diff-status]")).to_contain_text("Could not compare the texts in this browser.")
