"""Every page by keyboard alone: Tab reaches all that can be operated, in order and in sight, and is never caught."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.tab_order import faults
from tests.browser.support.training import PROJECT, Training
from tests.browser.test_group import group
from tests.browser.test_pins import plan_steps

pytestmark = DIRECT

MAX_STOPS = 40  # a strip, a list and a row of tools are one stop each


@pytest.fixture
def trained(training: Training) -> Training:
    """Two steps with a small group, a folded one and an answer to each of four questions; metrics; a finding; 12 pins
    in a plan."""
    rows = [*group("a", [0.0, 1.0, 0.5]), *group("b", [1.0] * 7 + [0.0] * 5, ["204"] * 7 + ["210"] * 5)]
    for step in (1, 2):
        training.pushed(step, 15, rows)
    points = [{"step": step, "time": 60.0 * step, "values": {"actor/loss": 1.0 / step}} for step in (1, 2)]
    message = training.server.send_json("POST", f"runs/{training.uid}/metrics/", {"attempt": "a", "points": points})
    assert message.is_success, message.error_message
    training.product.post("flags/", {"sample": training.samples(2)[0]["id"], "text": "loops"})
    plan_steps(training, 12, "stops")
    return training


def opened(visit: Visit, path: str) -> Page:
    page = visit.go(path)
    page.wait_for_load_state("networkidle")
    return page


@pytest.mark.timeout(600)  # twenty pages, each tabbed through
def test_tab_reaches_everything_on_every_page(visit: Visit, trained: Training) -> None:
    run, sample = f"/runs/{trained.uid}", trained.samples(2)[0]
    created = trained.product.post("findings/", {"project": PROJECT, "title": "Loops"})
    trained.product.post(f"findings/{created['id']}/exhibits/", {"sample": sample["id"]})
    key = json.loads(visit.context.request.get(f"{visit.site.url}/api/v1/samples/{sample['id']}/").text())["prompt_key"]
    compared = f"/compare/?of={trained.uid}@1,{trained.uid}@2&split=train"
    matches = []
    for path in (
        "/", f"{run}/", f"{run}/?show=table", f"{run}/?show=prompts", f"{run}/steps/latest/",
        f"{run}/steps/all/?q=is:wrong", f"{run}/steps/2/?q=score>9", f"{run}/groups/2/a/?whole=all",
        f"{run}/groups/2/b/", f"/samples/{sample['id']}/", f"/samples/{sample['id']}/?view=json",
        f"{run}/prompts/{key}/", compared, f"{compared}&sel={key}", "/compare/", "/live/", "/review/", "/pins/",
        f"/pins/?project={PROJECT}&plan=stops",
        "/findings/", f"/findings/{created['id']}/", f"/findings/add/?project={PROJECT}", "/settings/",
        f"/settings/{PROJECT}/",
    ):  # fmt: skip
        matches += faults(opened(visit, path), MAX_STOPS)
    assert matches == [], "\n".join(matches)


def test_a_dialog_keeps_the_focus_while_it_is_open_and_gives_it_back(visit: Visit, trained: Training) -> None:
    page = opened(visit, f"/runs/{trained.uid}/steps/latest/")
    for key, dialog in (("?", "#help"), ("Control+k", "#palette"), ("q", "#adding")):
        page.locator(".tabs a").nth(2).focus()
        page.keyboard.press(key)
        page.locator(dialog).wait_for()
        assert faults(page) == []
        inside = "(box) => document.activeElement === document.body || box.contains(document.activeElement)"
        assert page.locator(dialog).evaluate(inside), key
        page.keyboard.press("Escape")
        page.locator(dialog).wait_for(state="hidden")
        assert page.locator(".tabs a").nth(2).evaluate("(link) => link === document.activeElement"), key
