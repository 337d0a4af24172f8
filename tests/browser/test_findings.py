"""Findings: created by keyboard from a selected quote, edited, and downloaded as a file."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.browser.support.measure import Visit, list_row_ids
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training
from tests.browser.test_slow import HeldRequests

pytestmark = DIRECT

SELECT = """() => {
  const text = document.querySelector("#sample .response");
  const walk = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
  const first = walk.nextNode();
  getSelection().setBaseAndExtent(first, 0, first, 4);
}"""


def select_quote(page: Page) -> str:
    """Selects the first characters of the response once the page has loaded, and returns them."""
    page.wait_for_load_state("networkidle")
    page.evaluate(SELECT)
    return str(page.evaluate("getSelection().toString()"))


def test_a_selected_quote_becomes_a_finding_whose_file_opens_without_other_requests(
    visit: Visit, browser: Browser, tmp_path: Path
) -> None:
    training = Training(
        visit.site.product, "quoted", project=tmp_path.name
    )  # one without a finding: it asks for a title
    training.push_and_wait(1, 4)
    page = visit.go(f"/runs/{training.uid}/steps/latest/?q=score<2")
    row = list_row_ids(page)[1]
    page.keyboard.press("j")
    expect(page.locator(f"#sample article[data-id='{row}']")).to_be_visible()
    quote = select_quote(page)
    page.keyboard.press("q")
    box = page.locator("#adding")
    expect(box.locator("blockquote")).to_have_text(quote)
    expect(box.get_by_label("Title")).to_be_focused()
    page.keyboard.type(f"Seen in {training.uid}")
    page.mouse.click(5, 5)  # outside the dialog, which stays since something is typed
    box.get_by_label("current query").check()
    page.keyboard.press("Control+Enter")
    expect(box).to_be_hidden()
    visit.go("/findings/").get_by_role("link", name=f"Seen in {training.uid}").click()
    expect(page.locator(".exhibit blockquote")).to_have_text(quote)
    expect(page.locator(".exhibit")).to_have_count(2)
    page.locator(".exhibit").first.get_by_role("button", name="Move down").press("Enter")
    expect(page.locator(".exhibit").nth(1).get_by_role("button", name="Move up")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".exhibit").first.get_by_role("button", name="Move down")).to_be_focused()
    with page.expect_download() as download:
        page.keyboard.press("e")
    file = tmp_path / "finding.html"
    download.value.save_as(file)
    requests: list[str] = []
    other_context = browser.new_context()
    other_context.on("request", lambda request: requests.append(request.url))
    report = other_context.new_page()
    report.goto(file.as_uri())
    expect(report.locator("blockquote")).to_have_text(quote)
    assert requests == [file.as_uri()]
    other_context.close()


def test_a_typed_comment_is_not_saved_if_another_user_changed_the_comment_meanwhile(
    visit: Visit, training: Training
) -> None:
    training.push_and_wait(1, 2)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    visit.go(f"/findings/add/?sample={list_row_ids(page)[0]}").locator("#add-to").select_option("")
    page.get_by_label("Title").fill(f"Typed in {training.uid}")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("[data-add-form]")).to_have_count(0)
    visit.go("/findings/").get_by_role("link", name=f"Typed in {training.uid}").click()
    page.get_by_text("add comment").click()
    page.get_by_label("Comment").fill("half an hour of work")
    mate = visit.context.new_page()
    mate.goto(page.url)
    mate.get_by_text("add comment").click()
    mate.get_by_label("Comment").fill("the mate's")
    mate.get_by_role("button", name="Save", exact=True).last.click()
    expect(mate.locator(".words")).to_have_text("the mate's")
    expect(page.locator(".words")).to_have_text("the mate's")
    page.get_by_role("button", name="Save", exact=True).last.click()
    page.wait_for_load_state("networkidle")  # the first live update leaves what the person has to read
    expect(page.get_by_role("alert")).to_contain_text("Not saved: another user changed this comment")
    expect(page.get_by_label("Comment")).to_have_value("half an hour of work")
    expect(page.locator(".words")).to_have_text("the mate's")
    page.close()
    visit.clear_faults()  # the refusal


def test_a_block_for_a_chat_is_copied_with_the_selected_quote(visit: Visit, training: Training) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    training.push_and_wait(1, 2)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    row = list_row_ids(page)[0]
    quote = select_quote(page)
    page.keyboard.press("Shift+Q")
    expect(page.locator(".toast")).to_have_text("Copied with quote")
    copied = str(page.evaluate("navigator.clipboard.readText()")).split("\n")
    assert copied[1:] == [f"> {quote}", f"{visit.site.url}/samples/{row}/"]
    assert "train step 1 · score" in copied[0]
    page.keyboard.press("q")
    box = page.locator("#adding")
    expect(box).to_be_visible()
    heading = box.locator("label").first.bounding_box()
    assert heading
    page.mouse.move(heading["x"] + 5, heading["y"] + 5)
    page.mouse.down()
    page.mouse.move(5, 5)
    page.mouse.up()  # what began inside the dialog does not close it
    expect(box).to_be_visible()
    page.mouse.click(5, 5)
    expect(box).to_be_hidden()


def test_a_slow_answer_does_not_close_a_dialog_that_was_opened_meanwhile(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2)
    page = visit.go(f"/runs/{training.uid}/steps/latest/")
    saving = HeldRequests(page, "**/findings/add/", lambda route: route.request.method == "POST")
    box = page.locator("#adding")
    for title in ("saved", "refused"):
        page.keyboard.press("q")
        expect(box).to_be_visible()
        box.locator("#add-to").select_option("")
        box.get_by_label("Title").fill(f"{title} in {training.uid}")
        page.keyboard.press("Control+Enter")
        saving.wait()
        page.keyboard.press("Escape")
        expect(box).to_be_hidden()
        page.wait_for_function("document.activeElement === document.body")  # Chromium hides the dialog before that
    page.keyboard.press("q")
    expect(box).to_be_visible()
    saved, refused = saving.routes
    saved.continue_()
    expect(page.locator(".toast")).to_contain_text("saved in")
    refused.fulfill(status=400, json={"message": "refused"})
    expect(page.locator(".toast")).to_have_text("refused")
    expect(box).to_be_visible()
    expect(box.locator("[data-message]")).to_be_empty()
    visit.clear_faults()
