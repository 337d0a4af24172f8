"""The views of a sample: hostile texts stay text, keys move through the result, narrow windows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids, measure_overflow
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations

pytestmark = DIRECT

RAN = "window.__ran = (window.__ran || 0) + 1"
HOSTILE = {
    "script": f"</pre></textarea><script>{RAN}; alert(1)</script>",
    "handlers": f"<img src=x onerror='{RAN}'><body onload='{RAN}'><input autofocus onfocus='{RAN}'>",
    "svg": f"<svg onload='{RAN}'><script>{RAN}</script><use href='http://evil.invalid/x.svg#a'/></svg>",
    "frames": f"<iframe srcdoc='<script>parent.{RAN}</script>'></iframe><object data='//evil.invalid/'></object>",
    "base": "<base href='http://evil.invalid/'><meta http-equiv=refresh content='0;url=http://evil.invalid/'>",
    "remote": "<link rel=stylesheet href=//evil.invalid/a.css><img src=//evil.invalid/a>\n![x](//evil.invalid/b.png)",
    "links": f"[click](javascript:{RAN}) <a href='javascript:{RAN}'>x</a> http://evil.invalid/ <javascript:{RAN}>",
    "htmx": f"<p hx-get='//evil.invalid/' hx-trigger='load' hx-on::load='{RAN}'>x</p><p data-live id='result'>x</p>",
    "turned": "\u202egnirts desrever\u202c \u2066isolated \u2067 \u200bzero\u200b\ufeffwidth \u00ad\x00\x1b[31m",
    "wide": "M" * 3000 + " " + "|" + "x|" * 800 + "\n\n|" + "a|" * 300 + "\n|" + "-|" * 300,
    "macros": r"$\def\a{\b\b}\def\b{\c\c}\def\c{\a\a}\a$ $$\newcommand{\x}{\x\x}\x$$",
    "nested": "$" + "{" * 6000 + "}" * 6000 + "$ and $" + r"\sqrt{" * 3000 + "}" * 3000 + "$",
    "huge": r"$\rule{99999em}{99999em}$ $\kern999999em x$ $\raisebox{99999em}{x}$ $$\hspace{999999em}x$$",
    "trusted": rf"$\href{{javascript:{RAN}}}{{x}}$ $\includegraphics{{//evil.invalid/c.png}}$ $\htmlData{{a=1}}{{x}}$",
    "math after all that": "$x^2$",
    "line": "x<b>" * 250_000,
}


def open_sample(visit: Visit, pk: str, view: str) -> Page:
    page = visit.go(f"/samples/{pk}/?view={view}")
    expect(page.locator(".text.response, .text.rendered")).to_be_visible()
    if view == "math":
        expect(page.locator("[data-math][data-done]")).to_be_attached()
    return page


@pytest.mark.parametrize("view", ["raw", "math"])
def test_hostile_text_stays_text(visit: Visit, training: Training, view: str) -> None:
    created = [
        {
            "prompt": text[:5000],
            "response": text,
            "score": 0.5,
            "ground_truth": text[:200],
            "data_source": text[:60],
            "name": name,
        }
        for name, text in HOSTILE.items()
    ]
    training.push_and_wait(1, len(created), created)
    by_length = {len(text): name for name, text in HOSTILE.items()}
    for sample in training.list_samples(1):
        page = open_sample(visit, sample["id"], view)
        name = by_length[sample["chars"]]
        assert page.evaluate("window.__ran") is None, name
        assert page.locator("[data-live]#result, iframe, object, main script, main img").count() == 0, name
        assert measure_overflow(page) <= 0, f"{name} makes the page scroll sideways"
        if name == "math after all that" and view == "math":
            assert page.locator(".katex").count() == 1
        assert page.locator(".text").first.bounding_box()["height"] < 100_000, name  # type: ignore[index]
    assert visit.faults == []


def test_keys_move_through_the_current_result(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6)
    training.push_and_wait(2, 6)
    page = visit.go(f"/runs/{training.uid}/steps/1/?q=score<0.5")
    ids = list_row_ids(page)
    assert len(ids) == 3
    for key, at in (("j", 1), ("j", 2), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        expect(page.locator(f"#sample article[data-id='{ids[at]}']")).to_be_visible()
        assert list_selected_ids(page) == [ids[at]]
    page.keyboard.press("w")
    expect(page.locator("#strip .strip-name")).to_contain_text("step 2")
    expect(page.locator("#sample .sample-head")).to_contain_text("0.00")
    expect(page.locator(f"#r-{list_row_ids(page)[0]}")).to_have_attribute("aria-selected", "true")


def test_no_page_scrolls_sideways_in_a_window_of_400_or_800_pixels(visit: Visit, training: Training) -> None:
    training.push(1, [{**row, "data_source": f"a/rather/long-name-{n}"} for n, row in enumerate(generations(1, 12))])
    training.push_and_wait(2, 4)
    sample = training.list_samples(2)[0]["id"]
    run = f"/runs/{training.uid}"
    for path in (
        "/",
        "/live/",
        "/settings/",
        f"/settings/{training.project}/",
        f"{run}/",
        f"{run}/steps/1/",
        f"{run}/steps/all/",
        f"/samples/{sample}/",
    ):
        page = visit.go(path)
        for width in (400, 800):
            page.set_viewport_size({"width": width, "height": 700})
            assert measure_overflow(page) <= 0 and page.evaluate("main.scrollWidth - main.clientWidth") <= 0, (
                path,
                width,
            )
    page = visit.go(f"{run}/steps/1/")
    page.locator("#rows tr[data-id]").first.click()
    expect(page.locator("#sample article")).to_be_in_viewport()
    assert measure_overflow(page) <= 0
