"""The Chinese interface: keys by position, full-width characters in the query, and the switch to English."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.support.axe import list_violations
from tests.browser.support.measure import Visit, list_row_ids
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.browser.test_keyboard import dispatch_key

pytestmark = NGINX


def test_the_chinese_interface_accepts_keys_and_queries_and_switches_to_english(
    open_visit: Callable[..., Visit], training: Training
) -> None:
    training.push_and_wait(1, 6)
    visit = open_visit(locale="zh-CN")
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    expect(page.get_by_role("navigation", name="页面").get_by_role("link", name="样本")).to_be_visible()
    expect(page.locator("header time")).to_contain_text("前")  # the script's words too

    second = list_row_ids(page)[1]
    dispatch_key(page, key="j", code="KeyJ", isComposing=True)
    dispatch_key(page, key="Process", code="KeyJ", keyCode=229)
    dispatch_key(page, key="о", code="KeyJ")
    expect(page.locator(f"#rows tr[data-id='{second}']")).to_have_attribute("aria-selected", "true")

    page.locator("#q").fill("（score＜0.3）")
    expect(page.locator("#rows tr[data-id]")).to_have_count(2)
    assert list_violations(page) == []

    page.keyboard.press("Control+k")
    expect(page.locator("#palette-list")).to_contain_text("把这一步与另一步比较")
    expect(page.locator("#palette-status")).to_contain_text("个结果")
    expect(page.locator("#palette-list")).not_to_contain_text("比较选中的运行")  # what the key does in the run list
    page.keyboard.press("Escape")

    page.get_by_role("button", name="English").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.locator("#q")).to_have_value("（score＜0.3）")
    expect(page.locator("#rows tr[data-id]")).to_have_count(2)
    expect(page.locator("header time")).to_contain_text("ago")
