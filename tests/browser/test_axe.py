"""Every page as axe-core judges it by WCAG 2.2 AA and good practice: in both themes and languages, and on a phone."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.support.measure import Visit
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import PROJECT, Training
from tests.browser.test_group import group

pytestmark = DIRECT

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LIGHT: Literal["light"] = "light"
DARK: Literal["dark"] = "dark"
VIOLATIONS = {"resultTypes": ["violations"]}
EVERY = VIOLATIONS | {"runOnly": {"type": "tag", "values": LEVELS}}
COLOURS = VIOLATIONS | {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


def faults(page: Page, *, themes: bool = True) -> list[str]:
    """What stands on the page, in its light colours; then in its dark ones, by the rules that look at colours."""
    matches: list[str] = []
    violations: list[dict[str, Any]]
    for theme, rules in ((LIGHT, EVERY), (DARK, COLOURS))[: 2 if themes else 1]:
        page.emulate_media(color_scheme=theme)
        if theme == LIGHT:
            violations = Axe().run(page, options=rules).response["violations"]
        else:  # axe-core is on the page already
            violations = page.evaluate("async (rules) => (await axe.run(rules)).violations", rules)
        matches += [
            f"{page.url} {theme}: {item['id']} {node['html'][:200]}" for item in violations for node in item["nodes"]
        ]
    return matches


@pytest.mark.timeout(900)  # twenty pages, each looked through by axe-core
def test_no_page_has_an_issue_in_either_theme_or_language_or_on_a_phone(visit: Visit, training: Training) -> None:
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
        "/", f"{run}/", f"{run}/?show=table", f"{run}/?show=prompts",
        f"{run}/timeline/", f"{run}/prompts/{key}/", f"{run}/steps/latest/",
        f"{run}/steps/all/?q=is:wrong", f"{run}/groups/2/a/?whole=all",
        f"{run}/groups/2/b/", f"/samples/{sample}/", f"/samples/{sample}/?view=json", compared, "/compare/", "/live/",
        f"/review/?run={training.uid}", "/review/?queue=pinned", "/pins/", "/findings/",
        f"/findings/{created['id']}/", "/settings/", f"/settings/{PROJECT}/", "/api/docs/",
    ):  # fmt: skip
        visit.go(path)
        page.wait_for_load_state("networkidle")
        found += faults(page)
    narrow = ("/", f"{run}/", f"{run}/steps/2/", f"/samples/{sample}/", f"/review/?run={training.uid}", "/pins/")
    page.set_viewport_size({"width": 400, "height": 800})
    page.set_extra_http_headers({"Accept-Language": "zh-CN"})
    for path in narrow:
        visit.go(path)
        page.wait_for_load_state("networkidle")
        assert page.locator("html").get_attribute("lang") == "zh-hans", path
        found += faults(page, themes=False)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.set_extra_http_headers({})
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
