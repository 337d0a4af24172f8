"""Search hits: texts in lists are cut between letters, and keys move through the hits."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations

pytestmark = DIRECT

TEXTS = ("W" * 90, "我们计算这是正确的" * 12, "e\u0301\u0302" * 120, "كتب على الطاولة " * 9, "We compute it. " * 9)
# Whether each text that does not fit is cut by an ellipsis at its beginning, which a browser does between letters.
CUT = """() => [...document.querySelectorAll('#rows .tail a')].map((link) => {
  const style = getComputedStyle(link);
  const rtl = link.querySelector('bdi').dir === 'rtl';
  return link.scrollWidth <= link.clientWidth ||
    (style.textOverflow === 'ellipsis' && style.overflowX === 'hidden' && style.direction === (rtl ? 'ltr' : 'rtl'));
})"""


def open_step(visit: Visit, training: Training, query: str = "") -> Page:
    created = generations(1, 20)
    for n, row in enumerate(created):
        row["response"] = f"The needle is here, {'so we go on. ' * 300} a needle {TEXTS[n % 5]}"
    training.push_and_wait(1, 20, created)
    return visit.go(f"/runs/{training.uid}/steps/1/{query}")


def test_a_list_cuts_the_beginning_of_a_text_between_letters(visit: Visit, training: Training) -> None:
    page = open_step(visit, training)
    for width in (1440, 1111, 800, 400):
        page.set_viewport_size({"width": width, "height": 700})
        cut = page.evaluate(CUT)
        assert len(cut) == 20 and all(cut), width


def test_the_number_of_hits_does_not_cover_the_text(visit: Visit, training: Training) -> None:
    row = {"prompt": "p", "score": 1.0, "response": "so we go on " * 5_000}
    training.push_and_wait(1, 2, [row, {**row, "response": "كتب على الطاولة so " * 5_000}])
    page = visit.go(f"/runs/{training.uid}/steps/1/?q=so")
    expect(page.locator("#rows .snippet .hits").first).to_have_text("×5,000")
    overlap = """() => [...document.querySelectorAll('#rows .snippet')].map((link) => {
      const [text, count] = ['bdi', '.hits'].map((part) => link.querySelector(part).getBoundingClientRect());
      return Math.min(text.right, count.right) - Math.max(text.left, count.left);
    })"""
    for width in (1440, 800, 400):
        page.set_viewport_size({"width": width, "height": 700})
        assert max(page.evaluate(overlap)) <= 0, width


def test_keys_go_through_the_hits_and_switch_to_templates(visit: Visit, training: Training) -> None:
    page = open_step(visit, training, "?q=needle")
    position = page.locator("[data-hits] output")
    expect(page.locator("#rows .snippet mark.hit").first).to_have_text("needle")
    expect(position).to_have_text("hit 1 of 2")
    page.keyboard.press(".")
    expect(position).to_have_text("hit 2 of 2")
    expect(page.locator("mark.hit.reached")).to_be_in_viewport()
    page.keyboard.press(",")
    expect(position).to_have_text("hit 1 of 2")
    page.keyboard.press("Shift+A")
    expect(page.locator(".alike")).to_be_visible()
    expect(page).to_have_url(re.compile("top=alike"))
    page.keyboard.press("Shift+A")
    expect(page.locator(".alike")).to_have_count(0)


def test_n_continues_with_the_hits_of_the_next_sample_in_the_list(visit: Visit, training: Training) -> None:
    page = open_step(visit, training, "?q=needle")
    position, ids = page.locator("[data-hits] output"), list_row_ids(page)
    expect(position).to_have_text("hit 1 of 2")
    for key, at, hit in (("n", 0, 2), ("n", 1, 1), ("n", 1, 2), ("n", 2, 1), ("Shift+N", 1, 2), ("Shift+N", 1, 1)):
        page.keyboard.press(key)
        expect(page.locator("#sample article")).to_have_attribute("data-id", ids[at])
        expect(position).to_have_text(f"hit {hit} of 2")
        expect(page.locator("mark.hit.reached")).to_be_in_viewport()
        assert list_selected_ids(page) == [ids[at]]
    for key in ("k", "Shift+N"):
        page.keyboard.press(key)
    expect(page.locator(".toast")).to_have_text("First hit in the list")


def test_the_hits_have_buttons_on_a_phone(visit: Visit, training: Training) -> None:
    visit.page.set_viewport_size({"width": 400, "height": 800})
    page = open_step(visit, training, "?q=needle")
    page.locator("#rows .tail").first.click()
    position = page.locator("[data-hits] output")
    expect(position).to_have_text("hit 1 of 2")
    for name, text in (("Next hit", "hit 2 of 2"), ("Previous hit", "hit 1 of 2")):
        page.get_by_role("button", name=name, exact=True).click()
        expect(position).to_have_text(text)


def test_n_skips_samples_without_a_hit_and_stays_in_a_sample_opened_without_a_list(
    visit: Visit, training: Training
) -> None:
    created = generations(1, 6)
    for at in (0, 5):
        created[at]["response"] = "A needle and a needle."
    training.push_and_wait(1, 6, created)
    page = visit.go(f"/runs/{training.uid}/steps/1/?q=needle or score>=0&sort=score")
    ids = list_row_ids(page)
    expect(page.locator("[data-hits] output")).to_have_text("hit 1 of 2")
    page.keyboard.press("j")
    expect(page.locator("[data-hits] output")).to_have_text("0 hits")
    page.keyboard.press("n")
    expect(page.locator("#sample article")).to_have_attribute("data-id", ids[5])
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(page.locator(".toast")).to_have_text("Last hit in the list")
    visit.go(f"/samples/{ids[0]}/?q=needle")
    expect(page.locator("[data-hits] output")).to_have_text("hit 1 of 2")
    page.keyboard.press("Shift+N")
    expect(page.locator("[data-hits] output")).to_have_text("hit 2 of 2")


def test_the_response_keeps_a_width_next_to_all_other_columns(visit: Visit, training: Training) -> None:
    created = generations(1, 12)
    for n, row in enumerate(created):
        row |= {"response": f"{'We add and add. ' * 20}\n#### {n + 7}", "score": 1.0, "timing": {"generation": 1.5}}
        row |= {"rewards": {"acc": 1.0, "format": 0.5}, "data_source": f"source-{n % 2}"}
    training.push_and_wait(3, 12, created)
    page = visit.go(f"/runs/{training.uid}/steps/all/?q=is:answer-mismatch")
    heading = page.locator("th.c-tail")
    expect(page.locator("#rows .got").first).to_be_visible()
    assert page.locator("#samples th").count() >= 9
    for width in (1440, 1111, 900):
        page.set_viewport_size({"width": width, "height": 900})
        box = heading.bounding_box()
        assert box and box["width"] >= 150, width
