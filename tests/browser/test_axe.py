"""Dialogs pass axe-core. For pages see `test_every_page.py`."""

from __future__ import annotations

from tests.browser.support.axe import list_violations
from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_group import group

pytestmark = DIRECT


def test_no_dialog_has_an_issue(visit: Visit, training: Training) -> None:
    for step in (1, 2):
        training.push_and_wait(step, 3, group("a", [0.0, 1.0, 0.5]))
    run, page, found = f"/runs/{training.uid}", visit.page, []
    for path, key, dialog in (
        (f"/compare/?of={training.uid}@1,{training.uid}@2&split=train", "j", "#pair"),
        (f"{run}/steps/latest/", "?", "#help"),
        (f"{run}/steps/latest/", "Control+k", "#palette"),
    ):
        visit.go(path)
        page.wait_for_load_state("networkidle")
        page.keyboard.press(key)
        page.locator(dialog).wait_for()
        found += list_violations(page)
    visit.go("/")
    page.locator("#views-menu > summary").click()
    page.locator("#views-menu .view-save").wait_for()
    found += list_violations(page)
    assert found == [], "\n".join(found)
