"""Dialogs work by keyboard alone. For pages see `test_every_page.py`."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.tab_order import list_keyboard_faults
from tests.browser.support.training import Training

pytestmark = DIRECT


def open_page(visit: Visit, path: str) -> Page:
    page = visit.go(path)
    page.wait_for_load_state("networkidle")
    return page


def test_a_dialog_keeps_the_focus_while_it_is_open_and_gives_it_back(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = open_page(visit, f"/runs/{training.uid}/steps/latest/")
    for key, dialog in (("?", "#help"), ("Control+k", "#palette"), ("q", "#adding")):
        page.locator(".tabs a").nth(2).focus()
        page.keyboard.press(key)
        page.locator(dialog).wait_for()
        assert list_keyboard_faults(page) == []
        inside = "(box) => document.activeElement === document.body || box.contains(document.activeElement)"
        assert page.locator(dialog).evaluate(inside), key
        page.keyboard.press("Escape")
        page.locator(dialog).wait_for(state="hidden")
        assert page.locator(".tabs a").nth(2).evaluate("(link) => link === document.activeElement"), key
