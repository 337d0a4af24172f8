"""Flags: raised by keyboard, undone, and shown to other users at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.browser.support.intercept import HeldRequests, intercept
from tests.browser.support.measure import Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training

pytestmark = NGINX


def test_a_flag_raised_by_two_keys_is_counted_selects_the_next_sample_and_is_withdrawn(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    first, second = list_row_ids(page)[:2]
    page.keyboard.press("f")
    expect(page.locator("#flag-box form")).to_be_visible()
    page.keyboard.press("1")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    expect(page.locator(f"#r-{first} .tag.flag")).to_be_visible()
    expect(page.locator("#figures")).to_contain_text("flagged1")
    page.keyboard.press("k")
    expect(page.locator("#flags .flags li")).to_have_count(1)
    assert list_selected_ids(page) == [first]
    page.get_by_role("button", name="remove").click()
    expect(page.locator("#flags .flags li")).to_have_count(0)
    expect(page.locator("#figures")).to_contain_text("flagged0")
    expect(page.locator(f"#r-{first} .tag.flag")).to_have_count(0)


def test_a_flag_is_shown_next_to_two_marks(visit: Visit, training: Training) -> None:
    """The marks of a sample that ends in repetition and has no answer marker."""
    texts = ["I am not sure. " * 40, "Who knows? " * 40, *(f"{n} is it.\n#### {n}" for n in range(10))]
    rows = [{"prompt": "2+2", "response": text, "score": float(n), "group": "a"} for n, text in enumerate(texts)]
    training.push_and_wait(1, 12, rows)
    product, sample = visit.site.product, training.list_samples(1)[0]["id"]
    product.post("flags/", {"sample": sample})
    key = product.get(f"samples/{sample}/")["prompt_key"]
    for path in ("steps/1/", f"prompts/{key}/"):
        page = visit.go(f"/runs/{training.uid}/{path}")
        page.evaluate("document.fonts.ready.then(() => true)")
        marks = page.locator("main td:has(.tag.flag)")
        expect(marks).to_contain_text("REP")
        expect(marks).to_contain_text("NO ANSWER")
        assert marks.evaluate("cell => cell.scrollWidth <= cell.clientWidth"), path
    page = visit.go(f"/review/?run={training.uid}&queue=rules")
    page.evaluate("document.fonts.ready.then(() => true)")
    marks = page.locator(".queue td.decision:has-text('REP')")
    expect(marks).to_contain_text("NO ANSWER")
    assert marks.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


def test_an_undone_flag_is_removed_from_the_pane_without_a_notification(visit: Visit, training: Training) -> None:
    """The page receives no notification in this test."""
    training.push_and_wait(1, 4)
    visit.page.route_web_socket(re.compile("."), lambda _socket: None)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    first, second, third = list_row_ids(page)[:3]
    page.keyboard.press("f")
    page.keyboard.press("1")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(f"#sample article[data-id='{third}']")).to_be_visible()
    page.keyboard.press("k")
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    page.wait_for_load_state("networkidle")  # the pane of the first is here again, with its flag
    page.keyboard.press("u")
    expect(page.locator(f"#sample article[data-id='{first}']")).to_be_visible()
    expect(page.locator("#flags .flags li")).to_have_count(0)


def test_another_user_sees_a_new_flag_at_once(
    open_visit: Callable[..., Visit], visit: Visit, mate: Any, training: Training
) -> None:
    training.push_and_wait(1, 4)
    other = open_visit(mate).go(f"/runs/{training.uid}/steps/latest/")
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    expect(other.locator("#figures")).to_contain_text("flagged0")
    page.keyboard.press("f")
    page.keyboard.press("Enter")
    page.keyboard.type("looks wrong")
    page.keyboard.press("Enter")
    expect(other.locator("#flags .flags")).to_contain_text("looks wrong")
    expect(other.locator("#figures")).to_contain_text("flagged1")
    expect(other.get_by_role("button", name="remove")).to_have_count(0)
    other.keyboard.press("f")
    other.keyboard.press("2")
    expect(page.locator("#flags .flags")).to_contain_text("mina")


def test_escape_closes_the_box_in_a_drawer_first_and_a_hidden_box_gets_no_keys(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 4)
    visit.page.set_viewport_size({"width": 1000, "height": 800})
    page = visit.go(f"/runs/{training.uid}/steps/1/")
    drawer, box, row = page.locator("#sample"), page.locator("#flag-box"), page.locator("#rows tr[data-id]").first
    row.click()
    page.keyboard.press("f")
    expect(box.locator("form")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box.locator("form")).to_be_hidden()
    expect(drawer).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    row.click()
    page.keyboard.press("f")
    expect(box.locator("form")).to_be_visible()
    page.locator(".only-over").click()
    expect(drawer).to_be_hidden()
    page.keyboard.press("1")
    expect(box).to_have_attribute("open", "")  # no flag was saved


def test_several_rows_are_selected_flagged_together_and_undone_together(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 6)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    ids = list_row_ids(page)
    page.keyboard.press("x")
    expect(page.locator("#picked")).to_contain_text("1 selected")
    page.locator(f"#r-{ids[2]} td").nth(1).click(modifiers=["Shift"])
    expect(page.locator("#rows tr[data-picked]")).to_have_count(3)
    page.keyboard.press("f")
    expect(page.locator("#picked-flags form")).to_be_visible()
    page.keyboard.press("3")
    expect(page.locator("#picked")).to_be_hidden()
    expect(page.locator("#figures")).to_contain_text("flagged3")
    expect(page.locator("#rows .tag.flag")).to_have_count(3)
    page.keyboard.press("u")
    expect(page.locator("#figures")).to_contain_text("flagged0")
    expect(page.locator("#rows .tag.flag")).to_have_count(0)
    page.keyboard.press("x")
    page.get_by_role("button", name="all 6 matches").click()
    expect(page.locator("#picked")).to_contain_text("6 selected")
    page.keyboard.press("/")
    page.keyboard.type("score<0.6")
    page.keyboard.press("Enter")
    expect(page.locator("#rows tr[data-id]")).to_have_count(4)
    expect(page.locator("#picked")).to_contain_text("1 selected")  # all matches were those of the other query
    page.keyboard.press("Escape")
    expect(page.locator("#picked")).to_be_hidden()
    expect(page.locator("#rows tr[data-picked]")).to_have_count(0)


def test_an_undo_waits_until_many_flags_are_saved_and_keeps_the_rows_selected_meanwhile(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 6)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    ids = list_row_ids(page)
    page.keyboard.press("x")
    page.locator(f"#r-{ids[2]} td").nth(1).click(modifiers=["Shift"])
    expect(page.locator("#picked")).to_contain_text("3 selected")
    saving = HeldRequests(page, re.compile("/flags/"), lambda route: route.request.method == "POST")
    page.keyboard.press("f")
    page.keyboard.press("3")
    saving.wait()
    page.locator(f"#r-{ids[4]}").click(position={"x": 4, "y": 8})
    page.keyboard.press("u")
    page.wait_for_timeout(300)
    assert len(saving.routes) == 1
    saving.release()
    expect(page.locator(".toast")).to_contain_text("Undone")
    expect(page.locator("#figures")).to_contain_text("flagged0")
    expect(page.locator("#rows .tag.flag")).to_have_count(0)
    expect(page.locator("#picked")).to_contain_text("1 selected")
    expect(page.locator(f"#r-{ids[4]}")).to_have_attribute("data-picked", "")


def test_a_comment_that_is_not_sent_stays_with_its_sample(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    first, second = list_row_ids(page)[:2]
    page.keyboard.press("f")
    page.keyboard.press("Enter")
    page.keyboard.type("about the first")
    page.locator(f"#r-{second}").click()
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    comment = page.locator("#flag-box [name=text]")
    expect(comment).to_have_value("")
    page.locator(f"#r-{first}").click()
    expect(comment).to_have_value("about the first")
    expect(comment).to_be_visible()
    comment.press("Enter")
    expect(page.locator("#flags .flags li")).to_contain_text("about the first")
    expect(comment).to_have_value("")


def test_the_comment_of_a_refused_flag_stays_with_its_sample(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    intercept(visit.page, re.compile(r"/samples/\?"), lambda route: route.fulfill(json={}))  # no panes in advance
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    first, second, third = list_row_ids(page)
    saving = HeldRequests(page, re.compile("/flags/"), lambda route: route.request.method == "POST")
    page.keyboard.press("f")
    page.locator("#flag-box [name=text]").fill("about the first")
    page.keyboard.press("Enter")
    saving.wait()
    panes = HeldRequests(page, re.compile(f"/samples/{first}/"))
    page.locator(f"#r-{second}").click()
    expect(page.locator(f"#sample article[data-id='{second}']")).to_be_visible()
    saving.routes[0].fulfill(status=400, json={"message": "refused"})
    expect(page.locator(".toast")).to_have_text("refused")
    panes.wait()
    page.locator(f"#r-{third}").click()  # before the pane of the first is here again
    expect(page.locator(f"#sample article[data-id='{third}']")).to_be_visible()
    panes.release()
    page.locator(f"#r-{first}").click()
    expect(page.locator("#flag-box [name=text]")).to_have_value("about the first")
    visit.clear_faults()
