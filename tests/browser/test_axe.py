"""Every page as axe-core judges it, in both themes: nothing serious."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.measure import Visit
from tests.browser.sites import DIRECT
from tests.browser.test_group import group
from tests.browser.training import PROJECT, Training

pytestmark = DIRECT

GRAVE = ("serious", "critical")
LIGHT: Literal["light"] = "light"
DARK: Literal["dark"] = "dark"
EVERY = {"resultTypes": ["violations"]}
COLOURS = EVERY | {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


def faults(page: Page) -> list[str]:
    """What stands on the page, in its light colours; then in its dark ones, by the rules that look at colours."""
    matches = []
    for theme, rules in ((LIGHT, EVERY), (DARK, COLOURS)):
        page.emulate_media(color_scheme=theme)
        violations: list[dict[str, Any]] = Axe().run(page, options=rules).response["violations"]
        grave = [fault for fault in violations if fault["impact"] in GRAVE]
        matches += [
            f"{page.url} {theme}: {item['id']} {node['html'][:200]}" for item in grave for node in item["nodes"]
        ]
    return matches


@pytest.mark.timeout(900)  # twenty pages, each looked through by axe-core
def test_no_page_has_a_serious_issue_in_either_theme(visit: Visit, training: Training) -> None:
    odd = {"prompt": "ask", "response": "", "score": None, "data_source": "gsm8k", "ground_truth": "1"}
    many = group("b", [1.0] * 7 + [0.0] * 5, ["204"] * 7 + ["210"] * 5)
    for step in (1, 2):
        training.pushed(step, 16, [*group("a", [0.0, 1.0, 0.5]), *many, odd])
    run, page = f"/runs/{training.uid}", visit.page
    sample = training.samples(2)[0]["id"]
    created = training.product.post("findings/", {"project": PROJECT, "title": "Loops"})
    training.product.post(f"findings/{created['id']}/exhibits/", {"sample": sample})
    key = training.product.get(f"samples/{sample}/")["prompt_key"]
    compared = f"/compare/?of={training.uid}@1,{training.uid}@2&split=train"
    found = []
    for path in (
        "/", f"{run}/", f"{run}/?show=prompts", f"{run}/prompts/{key}/", f"{run}/steps/latest/",
        f"{run}/steps/all/?q=is:wrong", f"{run}/groups/2/a/?whole=all",
        f"{run}/groups/2/b/", f"/samples/{sample}/", f"/samples/{sample}/?view=json", compared, "/compare/", "/live/",
        f"/review/?run={training.uid}", "/review/?queue=pinned", "/pins/", "/findings/",
        f"/findings/{created['id']}/", "/settings/", f"/settings/{PROJECT}/", "/api/docs/",
    ):  # fmt: skip
        visit.go(path)
        page.wait_for_load_state("networkidle")
        found += faults(page)
    visit.go(compared)
    page.keyboard.press("j")
    page.locator("#pair").wait_for()
    found += faults(page)
    for key, dialog in (("?", "#help"), ("Control+k", "#palette")):
        visit.go(f"{run}/steps/latest/")
        page.keyboard.press(key)
        page.locator(dialog).wait_for()
        found += faults(page)
    assert found == [], "\n".join(found)
