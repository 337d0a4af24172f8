"""Pages on a phone (400 px) and in other narrow windows. For what is cut see `test_every_page.py`."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.support.charts import log_metrics
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_group import group

pytestmark = DIRECT

PHONE = {"viewport": {"width": 400, "height": 800}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def filled_training(training: Training) -> Training:
    """A run with two steps of a small group, a large group and an empty response."""
    odd = {"prompt": "ask", "response": "", "score": None, "data_source": "gsm8k", "ground_truth": "1"}
    many = group("b", [1.0] * 7 + [0.0] * 5, ["204"] * 7 + ["210"] * 5)
    for step in (1, 2):
        training.push_and_wait(step, 16, [*group("a", [0.0, 1.0, 0.5]), *many, odd])
    return training


def open_page(visit: Visit, path: str) -> Page:
    page = visit.go(path)
    page.wait_for_load_state("networkidle")
    return page


def get_size(element: Locator) -> tuple[float, float]:
    box = element.bounding_box()
    assert box
    return box["width"], box["height"]


def is_in_view(page: Page, element: Locator) -> bool:
    return bool(
        element.evaluate(
            "(e) => { const b = e.getBoundingClientRect(); return b.top >= 0 && b.top < innerHeight - 60; }"
        )
    )


def test_a_sample_is_read_and_judged_by_touch(open_visit: Callable[..., Visit], filled_training: Training) -> None:
    page = open_page(open_visit(**PHONE), f"/runs/{filled_training.uid}/steps/2/")
    ids = list_row_ids(page)
    assert get_size(page.locator(f"#r-{ids[1]} .tail"))[0] > 350  # the second line of the row
    page.locator(f"#r-{ids[1]} .tail").tap()
    pane = page.locator("#sample")
    expect(pane.locator("article")).to_have_attribute("data-id", ids[1])
    assert get_size(pane)[0] == 400
    for button in page.locator(".bottom-bar > button, .bottom-bar summary").all():
        width, height = get_size(button)
        assert min(width, height) >= 44, button.inner_text()
    page.locator(".bottom-bar [data-move='1']").tap()
    expect(pane.locator("article")).to_have_attribute("data-id", ids[2])
    page.locator(".bar-flag").tap()
    page.locator("#flag-box .chip").first.tap()
    expect(pane.locator(".flags li")).to_have_count(1)
    page.locator(".bottom-bar [data-move='1']").tap()
    expect(pane.locator("article")).to_have_attribute("data-id", ids[3])
    page.locator(".bar-ok").tap()  # of another sample: an OK withdraws the flag of its own
    expect(pane.locator("article")).to_have_attribute("data-id", ids[4])
    page.go_back()
    expect(pane).to_be_hidden()
    assert list_selected_ids(page) == [ids[4]]
    expect(page.locator(f"#r-{ids[2]} .tag.flag")).to_be_visible()
    page.evaluate("window.notReloaded = true")
    page.locator("#q").fill("score<0.9")
    page.locator("#q").press("Enter")
    expect(page.locator("#rows tr[data-id]")).to_have_count(7)
    page.locator(f"#r-{list_row_ids(page)[0]} .tail").tap()
    page.locator(".back-to-list").tap()
    expect(pane).to_be_hidden()
    page.locator(f"#r-{list_row_ids(page)[1]} .tail").tap()
    expect(pane.locator("article")).to_have_attribute("data-id", list_row_ids(page)[1])
    assert page.evaluate("window.notReloaded")
    page.evaluate("navigation.addEventListener('currententrychange', () => (window.isLeft = true))")
    page.keyboard.press("Escape")
    page.wait_for_function("window.isLeft")  # the entry of the sample
    expect(pane).to_be_hidden()
    page.go_back()  # undoes the query
    expect(page.locator("#q")).to_have_value("")
    expect(page.locator("#rows tr[data-id]")).to_have_count(len(ids))


def test_keys_work_in_a_narrow_window(visit: Visit, filled_training: Training) -> None:
    """A wide screen at 200 % zoom is as narrow as a phone."""
    visit.page.set_viewport_size({"width": 720, "height": 450})
    page = open_page(visit, f"/runs/{filled_training.uid}/steps/2/")
    ids = list_row_ids(page)
    article = page.locator("#sample article")
    page.keyboard.press("j")
    expect(article).to_have_attribute("data-id", ids[1])
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(article).to_have_attribute("data-id", ids[2])
    page.keyboard.press("a")
    expect(article).to_have_attribute("data-id", ids[3])
    expect(page.locator(f"#r-{ids[1]} .tag.flag")).to_have_count(1)
    page.keyboard.press("k")
    expect(article).to_have_attribute("data-id", ids[2])
    for selector in (".sample-tools", ".sample-head .actions", ".bottom-bar"):
        assert page.locator(f"#sample {selector}").is_visible() == (selector == ".bottom-bar")
    page = open_page(visit, f"/review/?run={filled_training.uid}")
    first = article.get_attribute("data-id")
    page.keyboard.press("1")
    expect(article).not_to_have_attribute("data-id", str(first))


def test_review_shows_the_response_above_a_bar_of_verdicts(
    open_visit: Callable[..., Visit], filled_training: Training
) -> None:
    page = open_page(open_visit(**PHONE), f"/review/?run={filled_training.uid}")
    article = page.locator("#sample article")
    first = article.get_attribute("data-id")
    assert is_in_view(page, page.locator("#sample .text.response"))
    assert get_size(page.locator("#sample"))[0] == 400
    more = page.locator("[data-verdict-more]")
    for button in (page.locator(".verdict .fine"), more):
        assert get_size(button)[1] >= 44
    more.tap()
    page.locator(".verdict [data-key='1']").tap()
    expect(article).not_to_have_attribute("data-id", str(first))
    expect(more).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".review-head b")).to_contain_text("1 of")


# Texts of a step page that end with an ellipsis because they do not fit: names of histograms, values of responses.
SHORTENED = """() => [...document.querySelectorAll(
  ".cells *, .bins *, .sources *, figure *, .sample-head *"
)].filter((box) =>
  getComputedStyle(box).textOverflow === "ellipsis" && box.scrollWidth > box.clientWidth + 1 && box.checkVisibility()
).map((box) => `${box.className}: ${box.textContent.trim()}`)"""
# Texts of the bar above the page with less than 3 px between them.
TOUCHING = """() => {
  const leaves = [...document.querySelectorAll(".top *")].filter((box) => box.checkVisibility() &&
    box.getBoundingClientRect().width > 2 &&
    [...box.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  const boxes = leaves.map((box) => {
    const range = document.createRange();
    range.selectNodeContents(box);
    const { top, bottom, left, right } = range.getBoundingClientRect(), edges = [right];
    for (let outer = box; outer; outer = outer.parentElement)
      if (getComputedStyle(outer).overflowX !== "visible") edges.push(outer.getBoundingClientRect().right);
    return [box, { top, bottom, left, right: Math.min(...edges) }];
  });
  return boxes.flatMap(([one, a]) => boxes
    .filter(([other, b]) => !one.contains(other) && !other.contains(one) && b.left >= a.left && b.left - a.right < 3 &&
      a.top < b.bottom && b.top < a.bottom)
    .map(([other]) => `${one.textContent.trim()} | ${other.textContent.trim()}`));
}"""
# Boxes that begin a line although they would fit into the line before.
WRAPPED_EARLY = """(boxes) => boxes.filter((box) => box.checkVisibility()).filter((box, at, all) => {
  const before = all[at - 1]?.getBoundingClientRect(), own = box.getBoundingClientRect();
  if (!before || box.parentElement !== all[at - 1].parentElement || own.top < before.bottom) return false;
  return box.parentElement.getBoundingClientRect().right - before.right > own.width + 24;
}).map((box) => box.textContent.trim())"""


def test_a_step_page_shortens_no_value_and_keeps_distance_between_texts(
    visit: Visit, filled_training: Training
) -> None:
    """Earlier faults were `in charact…`, `2,400 ch…`, `Settings○ step 80`, and a flag row that wrapped too early."""
    long = [{**row, "response": "w " * 1200} for row in group("a", [0.0, 1.0, 0.5])]
    filled_training.push_and_wait(80, 3, long)
    for width in (1440, 800):
        visit.page.set_viewport_size({"width": width, "height": 900})
        page = open_page(visit, f"/runs/{filled_training.uid}/steps/latest/")
        assert page.evaluate(SHORTENED) == [], width
        assert page.evaluate(TOUCHING) == [], width
    page.set_viewport_size({"width": 1440, "height": 900})
    tools = page.locator("#sample .sample-head .row > *, #flags .row > *")
    assert tools.evaluate_all(WRAPPED_EARLY) == []
    page.keyboard.press("f")
    expect(page.locator("#flag-box .chip").first).to_be_visible()
    assert page.locator("#flag-box .chip").evaluate_all(WRAPPED_EARLY) == []


def test_the_run_picker_of_review_opens_the_run_at_once(visit: Visit, filled_training: Training) -> None:
    other = filled_training.start_another("other-run")
    other.push_and_wait(1, 3)
    page = open_page(visit, f"/review/?run={filled_training.uid}")
    page.select_option("#review-run", value=other.uid)
    page.wait_for_url(f"**run={other.uid}**")
    expect(page.get_by_role("button", name="Open", exact=True)).to_have_count(0)


def test_axis_labels_of_a_chart_in_a_finding_are_readable(visit: Visit, filled_training: Training) -> None:
    log_metrics(filled_training, 1e-6)
    created = filled_training.product.post("findings/", {"project": filled_training.project, "title": "Curves"})
    filled_training.product.post(
        f"findings/{created['id']}/exhibits/", {"run": filled_training.uid, "names": ["critic/score/mean"]}
    )
    page = open_page(visit, f"/findings/{created['id']}/")
    labels = page.locator(".curves text")
    for width in (1440, 800, 400, 320):
        page.set_viewport_size({"width": width, "height": 900})
        heights = labels.evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
        assert len(heights) >= 4 and min(heights) >= 10, (width, heights)
        assert labels.evaluate_all("all => all.every((one) => one.getBoundingClientRect().left >= 0)"), width


@pytest.mark.parametrize("width", [400, 800])
def test_menus_open_inside_the_screen(open_visit: Callable[..., Visit], filled_training: Training, width: int) -> None:
    visit = open_visit(viewport={"width": width, "height": 800})
    sample = list_row_ids(open_page(visit, f"/runs/{filled_training.uid}/steps/2/"))[0]
    for path, menu, card in (
        ("/", "#picker", "#picker > .card"),
        ("/", "#views-menu", "#views-list"),
        (f"/runs/{filled_training.uid}/", "#views-menu", "#views-list"),
        (f"/runs/{filled_training.uid}/", "#over", "#over > .card"),
        (f"/runs/{filled_training.uid}/steps/2/", ".pin-box", ".pin-card"),
        (f"/samples/{sample}/", ".pin-box", ".pin-card"),
    ):
        page = open_page(visit, path)
        page.locator(f"{menu} > summary").first.click()
        expect(page.locator(card).first).to_be_visible()
        box = page.locator(card).first.bounding_box()
        button = page.locator(f"{menu} > summary").first.bounding_box()
        assert box and button
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, (path, card, box)
        assert box["width"] > 300, (path, card, box)
        assert box["y"] >= button["y"], (path, card, box, button)  # not over the header


def test_a_subpage_links_back_to_its_parent_page(open_visit: Callable[..., Visit], filled_training: Training) -> None:
    page = open_page(open_visit(**PHONE), "/queues/new/")
    back = page.get_by_role("link", name="queues", exact=True).first
    assert min(get_size(back)) >= 24
    back.tap()
    expect(page).to_have_url(re.compile(r"/queues/$"))
