"""Review queues by keyboard: several people at once, an unreachable server, and what a blind queue tells them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Response, WebSocket, expect

from tests.browser.conftest import sign_in
from tests.browser.support.axe import list_violations
from tests.browser.support.measure import Site, Visit, overflow
from tests.browser.support.narrow import list_cut
from tests.browser.support.sites import DIRECT
from tests.browser.support.training import PROJECT, Training

pytestmark = DIRECT

ITEMS = 12
QUESTIONS = [
    {"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True},
    {"key": "quality", "title": "Reasoning", "kind": "rating", "minimum": 1, "maximum": 5},
]


@pytest.fixture(scope="module")
def mates(site: Site, browser: Any) -> list[Any]:
    """The cookies of two annotators; the project has a rubric."""
    product = site.product
    Training(product, "first")  # makes the project
    product.post(f"projects/{PROJECT}/rubric/", {"questions": QUESTIONS, "base_version": 0}, "PUT")
    context = browser.new_context(storage_state=site.signed_in)
    page = context.new_page()
    links = []
    for name in ("quinn", "ravi"):
        page.goto(f"{site.url}/settings/{PROJECT}/")
        page.fill("#new-member", name)
        page.select_option("#new-role", "annotator")
        page.get_by_role("button", name="Add").click()
        links.append(page.locator(".secret pre").inner_text())
    context.close()
    return [sign_in(browser, link) for link in links]


def create_queue(training: Training, **settings: Any) -> int:
    values = {"project": PROJECT, "name": training.name[:60], "runs": [training.uid], **settings}
    return int(training.product.post("queues/", values)["id"])


def answer(page: Page) -> str:
    """Answers the open item by keyboard and waits for the next one, or the summary. Returns what the page said."""
    article = page.locator("article[data-item]")
    item = str(article.get_attribute("data-item"))
    said = page.locator(".queue-head [role=status]").inner_text()
    for key in ("1", "4", "Enter"):
        page.keyboard.press(key)
    expect(page.locator(f"article[data-item='{item}']")).to_have_count(0)
    return said


def is_done(page: Page) -> bool:
    expect(page.locator("article[data-item], [data-queue-done]")).to_be_visible()
    return page.locator("[data-queue-done]").count() > 0


def test_every_item_gets_two_answers_although_one_browser_dies(
    person: Callable[..., Visit], mates: list[Any], training: Training
) -> None:
    training.pushed(1, ITEMS)
    queue = create_queue(training, num_reviewers_per_item=2)
    path = f"/queues/{queue}/review/"
    quinn, ravi, lead = person(mates[0]), person(mates[1]), person()
    people = [quinn.go(path), ravi.go(path), lead.go(path)]
    for turn in range(4):
        for page in people:
            answer(page)
            expect(page.locator(".queue-head [role=status]")).to_have_text(
                re.compile(rf"^{turn + 1} answered, \d+ left$")
            )
    quinn.context.close()
    quinn.faults.clear()
    for page in people[1:]:
        while not is_done(page):
            answer(page)
    back = person(mates[0])
    page = back.go("/queues/")
    expect(page.locator("#queues")).to_contain_text("4 / ")
    page = back.go(path)
    while not is_done(page):
        answer(page)
    items = training.product.get(f"queues/{queue}/items/?page_size=100")["results"]
    answers = [item["answers"]["correct"] for item in items]
    assert len(answers) == ITEMS and all(len(each) == 2 for each in answers), answers
    state = training.product.get(f"queues/{queue}/")
    counted = {row["user"]: row["done"] for row in state["people"]}
    assert state["answers_done"] == state["answers"] == 2 * ITEMS == sum(counted.values())
    given: dict[str, int] = {}
    for each in answers:
        for author in each:
            given[author] = given.get(author, 0) + 1
    assert given == counted and state["people"][0]["held"] == 0
    expect(page.locator("[data-queue-done]")).to_contain_text(f"You answered {counted['quinn']} items.")
    page = lead.go(f"/queues/{queue}/")
    expect(page.locator("#progress")).to_contain_text(f"{ITEMS} of {ITEMS} items complete")
    assert list_violations(page) == []
    assert list_cut(page) == []


def test_answers_wait_for_an_unreachable_server(visit: Visit, training: Training) -> None:
    training.pushed(1, 3)
    page = visit.go(f"/queues/{create_queue(training)}/review/")
    expect(page.locator("article[data-item]")).to_be_visible()
    page.wait_for_load_state("networkidle")
    visit.context.set_offline(True)
    first = page.locator("article[data-item]").get_attribute("data-item")
    answer(page)  # the next item was loaded before
    banner = page.locator("#unsaved-answers")
    expect(banner).to_contain_text("1 answered items are not saved yet")
    for key in ("2", "Enter"):
        page.keyboard.press(key)
    expect(banner).to_contain_text("2 answered items are not saved yet")
    second = page.locator("article[data-item]").get_attribute("data-item")
    visit.context.set_offline(False)
    expect(banner).to_be_hidden()
    expect(page.locator(f"article[data-item]:not([data-item='{second}'])")).to_be_visible()  # it moved on by itself
    expect(page.locator(".queue-head [role=status]")).to_have_text("2 answered, 1 left")
    rows = training.product.get(f"labels/?run={training.uid}&name=correct")["results"]
    assert [row["value"] for row in rows] in ([True, False], [False, True]) and first != second
    answer(page)
    expect(page.locator("[data-queue-done]")).to_contain_text("You answered 3 items.")
    visit.forgive()


def test_a_blind_queue_tells_a_reviewer_nothing(
    person: Callable[..., Visit], mates: list[Any], training: Training
) -> None:
    rows = [
        {"prompt": f"Why {n}?", "response": f"Because {n}.", "score": 0.7654321 + n / 1e6, "group": f"grp-{n}",
         "index": 0, "ground_truth": f"truth-{n}", "data_source": "hidden-source"}
        for n in range(4)
    ]  # fmt: skip
    training.pushed(770077, 4, rows)
    samples = training.samples(770077)
    queue = create_queue(training, name="Neutral", is_blind=True, num_reviewers_per_item=2)
    training.product.post("labels/", {"sample": samples[0]["id"], "name": "correct", "value": False})
    visit = person(mates[0])
    told: list[tuple[str, str]] = []

    def keep(response: Response) -> None:
        if response.request.resource_type in ("document", "fetch", "xhr") and response.status == 200:
            told.append((response.url, response.text()))

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: told.append((socket.url, str(frame))))

    visit.page.on("websocket", listen)
    visit.context.on("requestfinished", lambda request: keep(request.response()))
    page = visit.go("/queues/")
    page.wait_for_load_state("networkidle")
    page = visit.go(f"/queues/{queue}/review/")
    assert list_violations(page) == []
    assert list_cut(page) == []
    assert overflow(page) == 0
    page.set_viewport_size({"width": 1440, "height": 900})
    answer(page)
    page.keyboard.press("u")
    expect(page.locator(".queue-head [role=status]")).to_have_text("0 answered, 4 left")
    answer(page)
    page.keyboard.press("s")
    expect(page.locator(".queue-head [role=status]")).to_have_text("1 answered, 2 left")
    while not is_done(page):
        answer(page)
    for path in ("api/v1/queues/?state=all", f"api/v1/queues/{queue}/"):
        told.append((path, page.request.get(f"{visit.site.url}/{path}").text()))
    assert any("Because" in text for _url, text in told) and any("topics" in text for _url, text in told)
    secrets = ["0.765", "0.77", "truth-", "grp-", "hidden-source", "770077", training.uid, training.name]
    for secret in [*secrets, *(row["id"] for row in samples)]:
        assert [url for url, text in told if secret in text] == [], secret
