"""Checks pages with axe-core against WCAG 2.2 AA and its best practices."""

from __future__ import annotations

from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LIGHT: Literal["light"] = "light"
DARK: Literal["dark"] = "dark"
VIOLATIONS = {"resultTypes": ["violations"]}
EVERY = VIOLATIONS | {"runOnly": {"type": "tag", "values": LEVELS}}
COLOURS = VIOLATIONS | {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


def list_violations(page: Page, *, themes: bool = True) -> list[str]:
    """Returns the violations in the light theme by all rules, then in the dark theme by the rules about colours."""
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
    page.emulate_media(color_scheme=LIGHT)
    return matches
