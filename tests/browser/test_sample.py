"""The page of a sample by keyboard: search, word diff, tokens, turns, copying."""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

from playwright.sync_api import CDPSession, Locator, Page, Route, expect

from tests.browser.support.intercept import intercept
from tests.browser.support.measure import Visit
from tests.browser.support.sites import NGINX
from tests.browser.support.training import Training
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = NGINX

LOOP = "Let me check again.\n" * 60
COUNT = 5000
# Faster than the wait after the last letter.
TYPE_AND_ENTER = """words => new Promise(done => {
  const field = document.querySelector("#find");
  field.value = words;
  field.dispatchEvent(new Event("input", {bubbles: true}));
  field.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}));
  setTimeout(done, 200);
})"""
# Faster than the next drawing.
ESCAPE = """() => {
  document.querySelector("#find").dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
  return document.activeElement.tagName;
}"""


def join_texts(elements: Locator) -> str:
    return "|".join(elements.all_text_contents())


def build_rows() -> list[dict[str, Any]]:
    tools = (
        'I ask.\n<tool_call>\n{"name": "python", "arguments": {"code": "print(4)"}}\n</tool_call>\nuser\n'
        "<tool_response>\n4\n</tool_response>\nassistant\nIt is 4. هذا صحيح. 一共有三个\n#### 4"
    )
    other = tools.replace("It is 4", "It was 5").replace("صحيح", "خطأ").replace("三", "四")
    common = {"prompt": "user\nWhat is 2+2?\nassistant\n", "group": "a"}
    logprobs = [-0.1] * COUNT
    logprobs[100] = logprobs[4500] = -7.0
    return [
        {**common, "index": 0, "score": 1.0, "response": tools},
        {**common, "index": 1, "score": 0.5, "response": other},
        {
            **common, "index": 2, "score": 0.25, "response": f"Once.\n{LOOP}It ends <b>here</b>.\n" + "x y z " * 40,
            "response_ids": list(range(COUNT)), "logprobs": logprobs,
        },
    ]  # fmt: skip


def open_sample(visit: Visit, training: Training, index: int) -> Page:
    """Opens the step's page with one of the built rows selected."""
    training.push_and_wait(1, 3, build_rows())
    scores = {row["score"]: row["id"] for row in training.list_samples(1)}
    page = visit.go(f"/runs/{training.uid}/steps/1/?sel={scores[build_rows()[index]['score']]}")
    expect(page.locator("#sample .text.response")).to_be_visible()
    return page


def test_a_response_is_compared_shown_as_turns_and_linked(visit: Visit, training: Training) -> None:
    page = open_sample(visit, training, 1)
    page.keyboard.press("d")
    changes = page.locator("[data-diff-out]")
    expect(changes).to_be_visible()
    assert join_texts(changes.locator("del")) == "is|4|صحيح|三"
    assert join_texts(changes.locator("ins")) == "was|5|خطأ|四"
    page.keyboard.press(".")
    expect(changes.locator(".reached")).to_have_text("is")
    page.keyboard.press("v")
    expect(page.locator("[data-vs][aria-current]")).to_contain_text("worst of group")
    shared = page.url
    assert "view=diff" in shared
    assert "vs=worst" in shared
    visit.go("/")
    visit.page.goto(shared)
    expect(page.locator("[data-vs][aria-current]")).to_contain_text("worst of group")
    page.keyboard.press("T")
    call = page.locator(".call")
    expect(call).to_contain_text("print(4)")
    expect(call.locator("> :last-child")).to_contain_text("4")
    page.keyboard.press("r")
    expect(page.locator("#sample .text.response .answer")).to_have_text("#### 4")
    expect(page).not_to_have_url(re.compile("view="))
    expect(page).not_to_have_url(re.compile("vs="))


def measure_opening(page: Page, url: str) -> float:
    """CPU seconds of the page's main thread until the text is painted and the page has loaded."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = count_task_seconds(session)
    page.goto(url)
    expect(page.locator("#sample .response")).to_be_visible()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return count_task_seconds(session) - before


def count_task_seconds(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def test_texts_of_megabytes_in_several_scripts_open_fast(visit: Visit, training: Training) -> None:
    loop = "The answer هو الجواب الصحيح 答案是四十二 and we repeat "
    steps = "".join(f"step {n} هو 答案 " for n in range(130_000))  # no loop, so nothing is folded
    texts = {0.0: loop * 42_000 + "#### 42", 0.5: steps, 1.0: "It is 42."}
    training.push_and_wait(1, 3, [{"prompt": "p", "response": text, "score": score} for score, text in texts.items()])
    urls = {sample["score"]: f"{visit.site.url}/samples/{sample['id']}/" for sample in training.list_samples(1)}
    page = visit.go("/")
    page.goto(urls[1.0])  # fills the browser's cache
    short = statistics.median(measure_opening(page, urls[1.0]) for _ in range(3))
    for score in (0.0, 0.5):
        page.goto(f"{visit.site.url}/")
        # 2.3 times as much; 300 times if the browser lays out all of it
        assert measure_opening(page, urls[score]) < 6 * short
        assert page.locator("#sample .response .block").count() > 50
        folds = page.locator("#sample .response .fold")
        if score == 0:
            expect(folds.locator("summary")).to_contain_text("× 42,000")
            folds.locator("summary").click()
            expect(folds.locator(".block").first).to_be_visible()
        else:
            expect(folds).to_have_count(0)
        kept = page.evaluate("document.querySelector('#sample .response').textContent.length")
        assert kept >= 2_000_000


def test_very_different_texts_stay_side_by_side(visit: Visit, training: Training) -> None:
    unlike = [
        "We compute the sum of both numbers first, and then halve it twice. #### 7",
        "Let x be what the shop sells on Monday. The rest follows from the table above. #### 9",
    ]
    training.push_and_wait(
        1,
        2,
        [
            {"prompt": "p", "group": "a", "index": n, "response": text, "score": float(n)}
            for n, text in enumerate(unlike)
        ],
    )
    page = visit.go(f"/samples/{training.list_samples(1)[0]['id']}/?view=diff")
    expect(page.locator("[data-diff-status]")).to_contain_text(
        "0 % of their three-word sequences are the same (limit 20 %)"
    )
    expect(page.locator(".sides [data-here]")).to_be_visible()
    expect(page.locator(".sample del, .sample ins")).to_have_count(2)  # the legend
    page.get_by_role("button", name="word diff anyway").click()
    expect(page.locator("[data-diff-out] del").first).to_be_visible()
    visit.go(f"/runs/{training.uid}/groups/1/a/?diff=1")
    expect(page.locator(".board-column .diff-note")).to_contain_text("too different for a word diff")
    expect(page.locator(".board-column :is(del, ins)")).to_have_count(0)


def test_words_are_found_in_folds_and_tokens_by_their_chart(visit: Visit, training: Training) -> None:
    page = open_sample(visit, training, 2)
    fold = page.locator("#sample .response .fold").first
    expect(fold.locator("summary")).to_contain_text("× 60")
    page.evaluate("history.replaceState({ htmx: true }, '')")
    page.keyboard.press("F")
    page.keyboard.type("check again")
    result = page.locator("form[data-find] output")
    expect(result).to_have_text("1 of 60")
    assert page.evaluate("history.state") == {"htmx": True}  # else Back to this entry would show nothing
    page.keyboard.press("Enter")
    expect(result).to_have_text("2 of 60")
    expect(fold).to_have_attribute("open", "")
    assert page.evaluate("CSS.highlights.get('find').size") == 60
    page.keyboard.press("Escape")
    expect(page.locator("form[data-find]")).to_be_hidden()
    page.keyboard.press("t")
    tokens = page.locator("[data-tokens] b")
    expect(tokens).to_have_count(2048)
    expect(page.locator("[data-tokens][data-done]")).to_be_visible()
    page.keyboard.press(".")
    expect(page.locator("[data-token-status]")).to_contain_text("#100 · id 100 · log-prob -7")
    page.keyboard.press(".")
    expect(page.locator("[data-tokens] [aria-current]")).to_have_text("4500")
    expect(tokens).to_have_count(COUNT - 4096)
    expect(page).to_have_url(re.compile("at=4500"))
    page.locator("[data-token-chart]").click(position={"x": 1, "y": 5})
    expect(page.locator("[data-tokens] b").first).to_have_text("0")
    page.locator("[data-tokens] b").nth(200).click()
    page.keyboard.press(".")  # goes on from there, not from the beginning
    expect(page.locator("[data-tokens] [aria-current]")).to_have_text("4500")
    page.locator("[data-as=table]").click()
    table = page.locator(".token-table tbody")
    expect(table.locator("tr")).to_have_count(COUNT - 4096)
    page.locator("[data-token-chart]").click(position={"x": 1, "y": 5})
    expect(table.locator("tr")).to_have_count(2048)
    page.keyboard.press(".")
    expect(table.locator(".reached td").first).to_have_text("100")
    page.keyboard.press(".")
    expect(table.locator(".reached td").first).to_have_text("4500")
    expect(page).to_have_url(re.compile("at=4500&as=table"))


def test_words_typed_before_the_search_script_is_loaded_are_found(visit: Visit, training: Training) -> None:
    page = open_sample(visit, training, 2)
    page.wait_for_load_state("networkidle")  # keys that wait for other scripts longer than 15 s are not used
    held: list[Route] = []
    intercept(page, re.compile(r"/find\b[^/]*\.js"), lambda route: held.append(route))
    page.keyboard.press("F")
    page.keyboard.type("check again")
    page.keyboard.press("Enter")
    expect(page.locator("#find")).to_have_value("check again")
    wait_until(lambda: page.wait_for_timeout(20) or held)
    held[0].continue_()
    result = page.locator("form[data-find] output")
    expect(result).to_have_text("2 of 60")
    page.evaluate(TYPE_AND_ENTER, "me check")
    expect(result).to_have_text("2 of 60")
    assert page.evaluate(ESCAPE) == "BODY"


def test_the_copied_text_equals_the_response(visit: Visit, training: Training) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = open_sample(visit, training, 2)
    page.get_by_role("button", name="Copy response", exact=True).click()
    expect(page.locator(".toast")).to_have_text("Copied")
    assert json.dumps(page.evaluate("navigator.clipboard.readText()")) == json.dumps(build_rows()[2]["response"])
