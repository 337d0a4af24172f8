"""The live feed: cards appear by themselves, and wait while a person reads."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.support.measure import Visit, measure_overflow
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations

pytestmark = DIRECT


def test_cards_appear_by_themselves_and_wait_behind_a_bar_after_space_stops_the_feed(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/live/?name={training.name}")
    cards, bar = page.locator("#arrivals article"), page.locator("[data-feed-new]")
    expect(cards).to_have_count(1)
    training.push(2, generations(2, 4))
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("train step 2")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    expect(page).to_have_url(re.compile("paused=1"))
    training.push(3, generations(3, 4))
    expect(bar).to_have_text("R 1 new")
    expect(page.locator(".foot-keys")).to_contain_text("show new")
    training.push(4, generations(4, 4))
    expect(bar).to_have_text("R 2 new")
    expect(cards).to_have_count(2)
    page.keyboard.press("Shift+R")
    expect(cards).to_have_count(4)
    expect(bar).to_be_hidden()
    training.push(5, generations(5, 4))
    expect(bar).to_have_text("R 1 new")
    page.keyboard.press("Space")
    expect(cards).to_have_count(5)
    expect(cards.first).to_contain_text("train step 5")
    expect(page).not_to_have_url(re.compile("paused"))
    page.set_viewport_size({"width": 800, "height": 900})
    assert measure_overflow(page) <= 0


def test_a_card_under_the_pointer_stays_where_it_is(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/live/?name={training.name}")
    page.locator("#arrivals article").hover()
    training.push(1, generations(1, 6), source="more")
    expect(page.locator("#arrivals article")).to_contain_text("samples 7")
    training.push(2, generations(2, 4))
    expect(page.locator("[data-feed-new]")).to_have_text("R 1 new")
    expect(page.locator("#arrivals article")).to_have_count(1)
