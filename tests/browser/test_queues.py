"""Review queues: several reviewers at once, a killed browser, an unreachable server, a blind reviewer."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserType, Route, WebSocket, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit
from tests.browser.support.queues import ANSWER_MANY, STATUS, answer_item, create_queue, is_done
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import Training, generations

pytestmark = DIRECT

ITEMS = 200
BY_KEYBOARD = 12  # items of each person; the others are answered by a script in the same browsers


class KillableBrowser:
    """A Chromium of its own, for a person whose browser is killed."""

    def __init__(self, launcher: BrowserType, options: dict[str, Any], state: Any) -> None:
        self.mark = f"--doomed={time.monotonic_ns()}"
        browser = launcher.launch(**{**options, "args": [*options["args"], self.mark]})
        self.page = browser.new_context(storage_state=state).new_page()

    def kill(self) -> None:
        """Sends SIGKILL to all of its processes, like a power cut: no page can react."""
        killed = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
                    killed += 1
        assert killed


def test_every_item_gets_two_answers_although_a_browser_is_killed(
    open_visit: Callable[..., Visit],
    mates: list[Any],
    training: Training,
    browser_type: BrowserType,
    browser_type_launch_args: dict[str, Any],
) -> None:
    for step in range(ITEMS // 50):
        training.push_and_wait(step, 50)
    queue = create_queue(training, num_reviewers_per_item=2)
    path = f"/queues/{queue}/review/"
    killable = KillableBrowser(browser_type, browser_type_launch_args, mates[0])
    killable.page.goto(training.product.url + path)
    pages = [killable.page, open_visit(mates[1]).go(path), open_visit().go(path)]
    for turn in range(BY_KEYBOARD):
        for page in pages:
            answer_item(page)
            expect(page.locator(STATUS)).to_contain_text(f"{turn + 1} answered, ")
    for page in pages:
        page.evaluate(ANSWER_MANY, [queue, ITEMS // 2])
    while killable.page.evaluate("window.answered") < 25:
        killable.page.wait_for_timeout(50)
    killable.kill()
    for page in pages[1:]:
        page.evaluate("window.working")

    state = training.product.get(f"queues/{queue}/")
    stored = {row["user"]: row["done"] for row in state["people"]}
    assert stored["quinn"] >= BY_KEYBOARD + 25
    assert state["answers_done"] == sum(stored.values()) < 2 * ITEMS  # what quinn had open waits for her
    visit = open_visit(mates[0])
    expect(visit.go("/queues/").locator("#queues")).to_contain_text(f"{stored['quinn']} answered by you")
    reopened = visit.go(path)
    expect(reopened.locator(STATUS)).to_contain_text(f"{stored['quinn']} answered, ")
    for _ in range(BY_KEYBOARD // 2):
        answer_item(reopened)
    for page in (reopened, *pages[1:]):
        page.evaluate(ANSWER_MANY, [queue, ITEMS])
    for page in (reopened, *pages[1:]):
        page.evaluate("window.working")

    items = training.product.get(f"queues/{queue}/items/?page_size={ITEMS}")["results"]
    answers = [item["answers"]["correct"] for item in items]
    assert len(answers) == ITEMS and all(len(each) == 2 for each in answers), answers
    labels = training.product.get(f"labels/?run={training.uid}&name=correct&page_size=500")["results"]
    state = training.product.get(f"queues/{queue}/")
    done = {row["user"]: row["done"] for row in state["people"]}
    assert state["answers_done"] == state["answers"] == 2 * ITEMS == sum(done.values())
    assert Counter(author for each in answers for author in each) == done
    assert Counter(label["author"] for label in labels) == done and len({label["id"] for label in labels}) == 2 * ITEMS
    assert [row["held"] for row in state["people"]] == [0, 0, 0]
    for page, name in ((reopened, "quinn"), (pages[1], "ravi"), (pages[2], "admin")):
        page.goto(training.product.url + path)
        expect(page.locator("[data-queue-done]")).to_contain_text(f"You answered {done[name]} items.")


@pytest.mark.usefixtures("mates")
def test_answers_wait_for_an_unreachable_server(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    expect(page.locator("article[data-item]")).to_be_visible()
    page.wait_for_load_state("networkidle")
    visit.context.set_offline(True)
    first = page.locator("article[data-item]").get_attribute("data-item")
    answer_item(page)  # the next item was loaded before
    banner = page.locator("#unsaved-answers")
    expect(banner).to_contain_text("1 answered item is not saved yet")
    for key in ("1", "Enter"):
        page.keyboard.press(key)
    expect(banner).to_contain_text("2 answered items are not saved yet")
    page.locator("article [name='q.correct']").last.check(force=True)
    page.keyboard.press("Enter")  # the item is still open: this answer replaces the one that waits
    second = page.locator("article[data-item]").get_attribute("data-item")
    visit.context.set_offline(False)
    expect(banner).to_be_hidden()
    expect(page.locator(f"article[data-item]:not([data-item='{second}'])")).to_be_visible()  # it moved on by itself
    expect(page.locator(".queue-head [role=status]")).to_have_text("2 answered, 1 left")
    rows = training.product.get(f"labels/?run={training.uid}&name=correct")["results"]
    assert [row["value"] for row in rows] in ([True, False], [False, True]) and first != second
    answer_item(page)
    expect(page.locator("[data-queue-done]")).to_contain_text("You answered 3 items.")
    visit.clear_faults()


@pytest.mark.usefixtures("mates")
def test_a_marked_part_is_the_text_that_the_person_selected(visit: Visit, training: Training) -> None:
    response = "🎉 one\r\ntwo \x07 𝑥 one"
    training.push_and_wait(1, 1, [{**generations(1, 1)[0], "response": response}])
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    text = page.locator("[data-text]").last
    expect(text).to_contain_text("one")
    for key in ("1", "4"):
        page.keyboard.press(key)
    expect(page.locator("article[data-item] input:checked")).to_have_count(2)  # the script of the page is there
    select = "node => { const r = document.createRange(), last = node.lastChild; r.setStart(last, last.length - 3);"
    select += " r.setEnd(last, last.length); getSelection().removeAllRanges(); getSelection().addRange(r); }"
    text.evaluate(select)
    page.get_by_role("button", name="Mark the selected text").click()
    expect(page.locator("[data-range]")).to_have_text("one")
    page.locator("[data-answers]").evaluate("form => form.requestSubmit()")
    expect(page.locator("[data-queue-done]")).to_be_visible()
    page.wait_for_load_state("networkidle")
    (row,) = training.product.get(f"labels/?run={training.uid}&name=quality")["results"]
    assert (row["start"], row["end"]) == (len(response) - 3, len(response))


@pytest.mark.usefixtures("mates")
def test_a_selection_is_only_for_its_own_response(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 2)
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    for key in ("1", "4"):
        page.keyboard.press(key)
    expect(page.locator("article[data-item] input:checked")).to_have_count(2)  # the script of the page is there
    page.locator("[data-text]").last.evaluate("node => getSelection().selectAllChildren(node)")
    mark = page.get_by_role("button", name="Mark the selected text")
    mark.click()
    expect(page.locator("[data-range]")).to_contain_text("Step 1 says")
    item = page.locator("article[data-item]").get_attribute("data-item")
    page.locator("[data-answers]").evaluate("form => form.requestSubmit()")
    expect(page.locator(f"article[data-item='{item}']")).to_have_count(0)
    mark.click()
    expect(page.locator(".toast")).to_have_text("Select a part of the response first.")
    expect(page.locator("[data-range]")).to_have_text("")


@pytest.mark.usefixtures("mates")
def test_answers_wait_until_a_person_has_signed_in_again(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    queue = create_queue(training)
    page = visit.go(f"/queues/{queue}/review/")
    expect(page.locator("article[data-item]")).to_be_visible()
    page.wait_for_load_state("networkidle")
    session = [cookie for cookie in visit.context.cookies() if "csrf" not in str(cookie.get("name"))]
    visit.context.clear_cookies()  # as after "sign out" in another tab
    answer_item(page)
    banner = page.locator("#unsaved-answers")
    expect(banner).to_contain_text("You are signed out")
    visit.context.add_cookies(session)  # type: ignore[arg-type]
    other = visit.context.new_page()
    other.goto(page.url.split("/queues/")[0])  # the session has another token for forms now
    expect(banner).to_be_hidden(timeout=20_000)
    expect(page.locator(STATUS)).to_have_text("1 answered, 2 left")
    rows = training.product.get(f"labels/?run={training.uid}&name=quality")["results"]
    assert [row["value"] for row in rows] == [4]
    training.product.post(f"queues/{queue}/", {"closed": True}, "PATCH")
    for key in ("1", "4", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("[data-queue-done]")).to_contain_text("This queue is closed.")
    training.product.post(f"queues/{queue}/", {"closed": False}, "PATCH")
    page.reload()
    expect(page.locator("article[data-item] input:checked")).to_have_count(2)  # what was entered is a draft
    visit.clear_faults()


def test_the_form_of_a_new_queue_says_that_its_preview_is_outdated(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    page = visit.go(f"/queues/new/?run={training.uid}")
    preview = page.locator(".queue-preview")
    expect(preview).to_contain_text("3 items of 3 that match")
    note = page.get_by_text("Settings have changed. Update the preview.")
    expect(note).to_be_hidden()
    page.locator("[name=q]").fill("score>2")
    expect(note).to_be_visible()
    page.get_by_role("button", name="Update the preview").click()
    expect(preview).to_contain_text("No sample matches the query.")
    expect(note).to_be_hidden()
    assert "score" in page.url and "csrf" not in page.url
    page.reload()
    expect(page.locator("[name=q]")).to_have_value("score>2")
    expect(preview).to_contain_text("No sample matches the query.")


def test_a_blind_reviewer_receives_no_hidden_value(
    open_visit: Callable[..., Visit], mates: list[Any], training: Training
) -> None:
    rows = [
        {**row, "score": 0.7654321 + at / 1e6, "group": f"grp-{at}", "ground_truth": f"truth-{at}",
         "data_source": "hidden-source"}
        for at, row in enumerate(generations(1, 5))
    ]  # fmt: skip
    training.push_and_wait(770077, 5, rows)
    samples = [row["id"] for row in training.list_samples(770077)]
    queue = create_queue(training, name="Neutral", is_blind=True, num_reviewers_per_item=2)
    visit = open_visit(mates[0])
    page = visit.page
    received: list[tuple[str, str]] = []

    def record(route: Route) -> None:
        if route.request.resource_type == "document":
            return route.continue_()
        response = route.fetch(max_redirects=0)
        received.append((route.request.url, f"{response.headers} {response.body().decode(errors='replace')}"))
        return route.fulfill(response=response)

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: received.append((socket.url, str(frame))))

    def load(path: str) -> None:
        response = page.goto(visit.site.url + path)
        assert response
        received.append((path, f"{response.headers} {response.text()}"))

    def answer_as_lead() -> None:
        item = training.product.post(f"queues/{queue}/next/", {})["item"]
        answers = {"correct": {"value": False, "rationale": "others-reason"}}
        training.product.post(f"queues/{queue}/items/{item['id']}/answers/", {"answers": answers}, "PUT")

    visit.context.route(re.compile("^(?!.*/static/)"), record)
    page.on("websocket", listen)
    load("/queues/")
    page.wait_for_load_state("networkidle")
    answer_as_lead()
    while not any(url.startswith("ws") and "queues" in text for url, text in received):
        page.wait_for_timeout(50)
    load(f"/queues/{queue}/review/")
    first = page.locator("article[data-item]").get_attribute("data-item")
    answer_item(page)
    page.keyboard.press("u")
    expect(page.locator(f"article[data-item='{first}']")).to_be_visible()  # the next item has the same numbers at first
    expect(page.locator(STATUS)).to_have_text("0 answered, 5 left")
    answer_item(page)
    page.keyboard.press("s")
    expect(page.locator(STATUS)).to_have_text("1 answered, 3 left")
    page.keyboard.press("2")
    page.wait_for_timeout(1000)  # the draft is saved
    load(f"/queues/{queue}/review/")
    answer_as_lead()
    while not is_done(page):
        answer_item(page)
    load("/queues/")
    for path in ("queues/?state=all", *(f"queues/{queue}/{name}" for name in ("", "items/", "agreement/"))):
        page.evaluate("(path) => fetch(path).then((answer) => answer.text())", f"/api/v1/{path}")
    for path in (f"/queues/{queue}/", f"/queues/{queue}/agreement/"):
        page.evaluate("(path) => fetch(path).then((answer) => answer.text())", path)
    page.evaluate(ANSWER_MANY, [queue, 1])
    page.evaluate("window.working")

    assert any("says 5" in text for _url, text in received)  # texts were recorded
    hidden = ["0.765", "0.77", "truth-", "grp-", "hidden-source", "770077", training.uid, training.name]
    for secret in [*hidden, "others-reason", *samples]:
        assert [url for url, text in received if secret in text] == [], secret
    visit.context.unroute_all(behavior="wait")  # a request of the live feed may be on its way
    visit.clear_faults()  # what only leads may see was refused


@pytest.mark.usefixtures("mates")
def test_the_progress_of_a_slow_answer_does_not_replace_a_newer_one(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 5)
    queue = create_queue(training)
    page = visit.go(f"/queues/{queue}/review/")
    held: list[tuple[Route, Any]] = []
    intercept(page, "**/answers/", lambda route: held.append((route, route.fetch())))
    answer_item(page)
    while not held:
        page.wait_for_timeout(20)
    skipped = page.locator("article[data-item]").get_attribute("data-item")
    page.keyboard.press("s")
    page.keyboard.press("1")  # is for the item after the skipped one
    page.wait_for_timeout(500)
    held[0][0].fulfill(response=held[0][1])
    expect(page.locator(STATUS)).to_have_text("1 answered, 3 left")
    page.wait_for_timeout(500)
    expect(page.locator(STATUS)).to_have_text("1 answered, 3 left")
    expect(page.locator(f"article[data-item='{skipped}']")).to_have_count(0)
    expect(page.locator("article[data-item] input:checked")).to_have_count(1)


@pytest.mark.usefixtures("mates")
def test_a_typed_correction_is_saved_without_a_click_on_its_box(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 3)
    queue = create_queue(training)
    page = visit.go(f"/queues/{queue}/review/")
    with page.expect_request("**/answers/") as request:
        answer_item(page)
    sent = request.value.post_data or ""
    assert 'name="q.correct"' in sent and 'name="correction"' not in sent  # without the text of the response
    item = page.locator("article[data-item]").get_attribute("data-item")
    page.locator(".correction summary").click()
    page.locator("[name=correction]").fill("The answer is 4.")
    page.locator("article [name='q.correct']").first.check()
    page.locator("[data-answers] .primary").click()
    expect(page.locator(f"article[data-item='{item}']")).to_have_count(0)
    page.keyboard.press("u")
    expect(page.locator(f"article[data-item='{item}'] [name=correction]")).to_have_value("The answer is 4.")


@pytest.mark.usefixtures("mates")
def test_a_correction_keeps_the_line_breaks_at_the_start_of_the_response(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 1, [{"prompt": "2+2", "response": "\n\nIt is 4.", "score": 1.0}])
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    expect(page.locator("[name=correction]")).to_have_value("\n\nIt is 4.")
