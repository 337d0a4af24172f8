"""Every page of `tests/support/page_list.py` is opened once and checked in several ways.

The checks: axe-core in both themes; by keyboard alone, Tab reaches all controls in order, with a visible focus, and is
never trapped; at 800, 400 and 320 px nothing is cut and no table is wider than its box; then axe-core on a phone in
Chinese.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex
from typing import Any

from playwright.sync_api import Page, ViewportSize

from tests.browser.support.axe import list_violations
from tests.browser.support.filled_pages import fill_pages
from tests.browser.support.measure import Site, Visit
from tests.browser.support.narrow import list_layout_faults
from tests.browser.support.sites import DIRECT
from tests.browser.support.tab_order import list_keyboard_faults
from tests.browser.support.training import Training
from tests.support.page_list import PAGES

pytestmark = DIRECT

MAX_STOPS = 41  # a strip, a list and a row of tools are one stop each; a sample links its re-score
WIDE: ViewportSize = {"width": 1440, "height": 900}
SIGNED_OUT: dict[str, list[Any]] = {"cookies": [], "origins": []}


def open_page(visit: Visit, path: str) -> Page:
    page = visit.go(path)
    page.wait_for_load_state("networkidle")
    return page


def test_every_page_is_accessible_and_nothing_on_it_is_cut(
    visit: Visit, open_visit: Callable[..., Visit], site: Site
) -> None:
    training = Training(site.product, "every page", f"pages-{token_hex(4)}")  # what other tests write changes nothing
    values = fill_pages(training, visit)
    stranger, found = open_visit(SIGNED_OUT, bypass_csp=True), []  # a shared page allows no scripts, axe-core is one
    stranger.context.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # nor the icon of the site
    for listed in PAGES:
        viewer = visit if listed.signed_in else stranger
        viewer.page.set_viewport_size(WIDE)
        page = open_page(viewer, listed.path.format(**values))
        found += list_violations(page)
        found += list_keyboard_faults(page, MAX_STOPS)
        found += list_layout_faults(page)
    phone = open_visit(viewport={"width": 400, "height": 800}, locale="zh-CN")
    for listed in PAGES:
        if listed.phone:
            page = open_page(phone, listed.path.format(**values))
            assert page.locator("html").get_attribute("lang") == "zh-hans", listed
            found += list_violations(page, themes=False)
    assert found == [], "\n".join(found)
