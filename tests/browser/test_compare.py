"""The page that compares steps and runs: its keys, its word diff, and its width."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_sample_views import HOSTILE
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = NGINX

# The first comparison in a worker waits for `held()`, which ends when the page has used or no longer needs the answer.
HOLD_FIRST_DIFF = """() => {
  const { postMessage, terminate } = Worker.prototype;
  Worker.prototype.terminate = function () {
    this.isOver = true;
    terminate.call(this);
  };
  Worker.prototype.postMessage = function (message) {
    if (window.held) return postMessage.call(this, message);
    window.held = () => new Promise((done) => {
      if (this.isOver) return done();
      this.addEventListener("message", () => setTimeout(done));
      postMessage.call(this, message);
    });
  };
}"""
LONG_TEXT = "we go on and on\n" * 200  # too much for a comparison without a worker


def build_rows(step: int) -> list[dict[str, Any]]:
    """Three prompts; the responses depend on the step."""
    return [
        {"prompt": f"ask {n}", "response": f"we say word {step} here\n#### {n + step}", "score": float((n + step) % 2)}
        for n in range(3)
    ]


def test_prompts_open_by_key_and_show_what_differs(visit: Visit, training: Training) -> None:
    for step in (1, 2, 3):
        training.push_and_wait(step, 3, build_rows(step))
    page = visit.go("/compare/?of=" + ",".join(f"{training.uid}@{step}" for step in (1, 2, "latest")) + "&split=train")
    page.keyboard.press("j")
    expect(page.locator("#pair .board-column")).to_have_count(3)
    first = page.locator("#pair").get_attribute("data-pair")
    page.keyboard.press("d")
    expect(page.locator("#answer-B ins").first).to_have_text("2")
    expect(page.locator("#answer-C del").first).to_have_text("1")
    expect(page.locator("#answer-A ins")).to_have_count(0)
    page.keyboard.press("j")
    expect(page.locator("#pairs > [aria-current] + #texts")).to_be_visible()
    expect(page.locator(f"#pair[data-pair='{first}']")).to_have_count(0)
    expect(page.locator("#answer-B ins").first).to_have_text("2")
    page.keyboard.press("k")
    expect(page.locator(f"#pair[data-pair='{first}']")).to_be_visible()
    training.push(4, build_rows(4))  # the latest step; what is open stays open
    expect(page.locator("#answer-C header")).to_contain_text("@4")
    expect(page.locator("#answer-C ins").first).to_have_text("4")
    page.set_viewport_size({"width": 800, "height": 800})
    assert measure_overflow(page) <= 0 and int(page.evaluate("main.scrollWidth - main.clientWidth")) <= 0
    page.reload()
    expect(page.locator("#answer-C ins").first).to_have_text("4")
    page.keyboard.press("Escape")
    expect(page.locator("#pair")).to_have_count(0)


def test_a_slow_diff_is_not_shown_for_the_next_prompt(visit: Visit, training: Training) -> None:
    for step in (1, 2):
        rows = [
            {"prompt": f"ask {n}", "response": f"{LONG_TEXT}#### {n}{step}", "score": n + step / 9} for n in range(2)
        ]
        training.push_and_wait(step, 2, rows)
    page = visit.go(f"/compare/?of={training.uid}@1,{training.uid}@2&split=train&diff=1")
    page.evaluate(HOLD_FIRST_DIFF)
    page.keyboard.press("j")
    wait_until(lambda: page.evaluate("Boolean(window.held)"))
    first = page.locator("#pair .prompt").inner_text().strip()
    page.keyboard.press("j")
    expect(page.locator("#pair .prompt")).not_to_have_text(first)
    second = page.locator("#pair .prompt").inner_text().strip()
    changed = f"{second[-1]}2"
    expect(page.locator("#answer-B ins")).to_have_text(changed)
    page.evaluate("held()")
    expect(page.locator("#answer-B ins")).to_have_text(changed)


def test_intervals_are_not_cut_in_windows_of_laptops(visit: Visit, training: Training) -> None:
    for step in (1, 2, 3):
        training.push_and_wait(
            step, 24, [{**row, "prompt": f"{row['prompt']} {n}"} for n in range(8) for row in build_rows(step)]
        )
    of = ",".join(f"{training.uid}@{step}" for step in (1, 2, 3))
    for kind in ("paired", "all"):
        page = visit.go(f"/compare/?of={of}&split=train&as={kind}")
        for width in (900, 1024, 1280, 1440):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.locator(".interval").first.is_visible()
            cut = "[...document.querySelectorAll('.wide-table')].map(box => box.scrollWidth - box.clientWidth)"
            assert max(page.evaluate(cut)) <= 0, (kind, width)


def test_tables_of_sources_are_not_cut_in_wide_windows(visit: Visit, training: Training) -> None:
    for step in (1, 2):
        rows = [
            {**row, "prompt": f"{row['prompt']} {n} {source}", "data_source": source}
            for source in ("gsm8k", "math")
            for n in range(8)
            for row in build_rows(step)
        ]
        training.push_and_wait(step, len(rows), rows)
    page = visit.go(f"/compare/?of={training.uid}@1,{training.uid}@2&split=train&as=mix")
    page.keyboard.press("t")
    expect(page.locator(".breakdowns table").first).to_be_visible()
    for width in (900, 1024, 1280, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        cut = "[...document.querySelectorAll('.breakdowns .wide-table')].map(box => box.scrollWidth - box.clientWidth)"
        assert max(page.evaluate(cut)) <= 0, width


def test_hostile_answers_stay_text_also_as_a_diff(visit: Visit, training: Training) -> None:
    for step in (1, 2):
        rows = [
            {"prompt": f"ask {n}", "response": f"{text} {step}", "score": float(step)}
            for n, text in enumerate(HOSTILE.values())
            if len(text) < 100_000
        ]
        training.push_and_wait(step, len(rows), rows)
    page = visit.go(f"/compare/?of={training.uid}@1,{training.uid}@2&split=train&diff=1")
    page.keyboard.press("j")
    for _ in range(page.locator("#pairs > tr[data-href]").count() - 1):
        expect(page.locator("#answer-B :is(ins, del)").first).to_be_visible()
        pair = page.locator("#pair").get_attribute("data-pair")
        page.keyboard.press("j")
        expect(page.locator(f"#pair[data-pair='{pair}']")).to_have_count(0)
    assert page.evaluate("window.__ran") is None
    assert page.locator("iframe, object, main script, main img").count() == 0
    assert measure_overflow(page) <= 0


def test_other_prompts_are_compared_by_all_samples_and_keys(visit: Visit, training: Training) -> None:
    for step in (1, 2):
        rows = [
            {"prompt": f"{step} {source} {n}", "response": "x" * n, "score": n / 12, "data_source": source}
            for source, count in (("easy", 14 - step), ("hard", 10 + step))
            for n in range(count)
        ]
        training.push_and_wait(step, len(rows), rows)
    page = visit.go(f"/compare/?of={training.uid}@1,{training.uid}@2&split=train")
    chosen = page.locator("#compare-views [aria-current]")
    expect(chosen).to_contain_text("same mix of sources")
    page.keyboard.press("m")
    expect(chosen).to_contain_text("all samples")
    expect(page).to_have_url(re.compile("as=all"))
    page.keyboard.press("t")
    expect(page.locator(".distributions table")).to_have_count(2)
    page.keyboard.press("t")
    bars = page.locator("#svg-1 a")
    bars.first.focus()
    page.keyboard.press("ArrowRight")
    expect(bars.nth(1)).to_be_focused()
    for width in (800, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert measure_overflow(page) <= 0
    name = bars.nth(1).get_attribute("aria-label") or ""
    bars.nth(1).press("Enter")
    expect(page.locator("#rows tr[data-id]")).to_have_count(int(name.split(", ")[1].split()[0]))
