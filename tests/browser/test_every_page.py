"""Every page of `tests/support/page_list.py`, opened once and looked at in several ways.

By axe-core in both themes; by keyboard alone: Tab reaches all that can be operated, in order and in sight, and is never
caught; at 800, 400 and 320 px, where nothing is cut and no table is wider than its box; then on a phone in Chinese.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Any

from playwright.sync_api import Page, ViewportSize

from tests.browser.support.axe import list_violations
from tests.browser.support.filled_pages import fill_pages
from tests.browser.support.measure import Site, Visit
from tests.browser.support.narrow import list_cut
from tests.browser.support.sites import DIRECT
from tests.browser.support.tab_order import faults
from tests.browser.support.training import Training
from tests.support.page_list import PAGES

pytestmark = DIRECT

MAX_STOPS = 41  # a strip, a list and a row of tools are one stop each; a sample links its re-score
WIDE: ViewportSize = {"width": 1440, "height": 900}
SIGNED_OUT: dict[str, list[Any]] = {"cookies": [], "origins": []}


def opened(visit: Visit, path: str) -> Page:
    page = visit.go(path)
    page.wait_for_load_state("networkidle")
    return page


def test_every_page_is_accessible_and_nothing_on_it_is_cut(
    visit: Visit, person: Callable[..., Visit], site: Site
) -> None:
    training = Training(site.product, "every page", f"pages-{token_hex(4)}")  # what other tests write changes nothing
    values = fill_pages(training, visit)
    stranger, found = person(SIGNED_OUT, bypass_csp=True), []  # a shared page allows no scripts, axe-core is one
    stranger.context.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # nor the icon of the site
    for listed in PAGES:
        seen = visit if listed.signed_in else stranger
        seen.page.set_viewport_size(WIDE)
        page = opened(seen, listed.path.format(**values))
        found += list_violations(page)
        found += faults(page, MAX_STOPS)
        found += list_cut(page)
    phone = person(viewport={"width": 400, "height": 800}, locale="zh-CN")
    for listed in PAGES:
        if listed.phone:
            page = opened(phone, listed.path.format(**values))
            assert page.locator("html").get_attribute("lang") == "zh-hans", listed
            found += list_violations(page, themes=False)
    assert found == [], "\n".join(found)
