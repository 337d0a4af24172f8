"""The nine things that researchers do all day, on real dumps, in at most so many clicks, keys and typed queries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Members
from tests.browser.support.measure import Site, Visit, rows, selected
from tests.browser.support.sites import NGINX
from tests.browser.support.training import PROJECT, Training, generations
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = NGINX

DATA = Path(__file__).parents[1] / "data"
V0 = DATA / "verl_jsonl" / "v0"
ROWS = 32  # of each file there


class Hands:
    """What a person does to a page; `acts` counts it."""

    def __init__(self, page: Page) -> None:
        self.page, self.acts = page, 0

    def press(self, key: str) -> None:
        self.acts += 1
        self.page.keyboard.press(key)

    def click(self, target: Locator) -> None:
        self.acts += 1
        target.click()

    def enter_query(self, q: str) -> None:
        """A typed query is one act."""
        self.acts += 1
        self.page.keyboard.press("/")
        self.page.keyboard.type(q)
        self.page.keyboard.press("Enter")


@pytest.fixture(scope="session")
def runs(site: Site) -> dict[str, str]:
    """Real verl dumps imported as a person would; uids by name."""
    imported(site, DATA / "verl_jsonl" / "v0", "tasks v0")
    imported(site, DATA / "verl_jsonl" / "v1", "tasks v1")
    imported(site, DATA / "verl_skip" / "main", "tasks kept", "--tokenizer", str(DATA / "tokenizer"))
    result = {run["name"]: run["id"] for run in site.product.get("runs/?project=math")["results"]}
    wait_until(lambda: site.product.get(f"samples/?run={result['tasks kept']}&split=train&q=is:truncated")["count"] > 0)
    return {name: result[f"tasks {name}"] for name in ("v0", "v1", "kept")}


def imported(site: Site, folder: Path, name: str, *more: str) -> None:
    words = ("import", str(folder), "--project", PROJECT, "--run", name, *more)
    assert site.product.command(*words).wait(120) == 0


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


@pytest.fixture
def at_step(visit: Visit, runs: dict[str, str]) -> Callable[..., Hands]:
    def go(query: str = "", *, name: str = "v0", step: str = "latest") -> Hands:
        page = visit.go(f"/runs/{runs[name]}/steps/{step}/{query}")
        expect(page.locator("#sample article")).to_be_visible()
        return Hands(page)

    return go


def test_t1_the_worst_sample_of_the_latest_step_is_one_key_away(at_step: Callable[..., Hands]) -> None:
    hands = at_step("?split=eval", step="2")
    hands.press("w")
    worst = min(row["score"] for row in read_lines(V0 / "val" / "5.jsonl"))
    expect(hands.page.locator("#strip .strip-name")).to_contain_text("step 5")
    expect(hands.page.locator("#sample .sample-head")).to_contain_text(f"{worst:.2f}")
    assert hands.acts <= 1


def test_t2_one_prompt_over_the_steps_is_seen_without_an_act_and_read_with_one_key(
    at_step: Callable[..., Hands],
) -> None:
    hands = at_step("?split=eval")
    expect(hands.page.locator("#sample .past a")).to_have_count(4)
    before = hands.page.locator("#sample article").get_attribute("data-id")
    assert hands.acts == 0
    hands.press("[")
    expect(hands.page.locator("#sample article")).not_to_have_attribute("data-id", before or "")
    expect(hands.page.locator("#strip .strip-name")).to_contain_text("step 4")
    expect(hands.page).to_have_url(re.compile("split=eval"))
    assert hands.acts <= 1


def test_t3_all_responses_of_a_group_are_seen_without_an_act_and_read_with_one_key(
    at_step: Callable[..., Hands],
) -> None:
    hands = at_step(name="v1")
    expect(hands.page.locator("#sample .cells .cell")).to_have_count(4)
    assert hands.acts == 0
    hands.press("g")
    expect(hands.page.locator(".board-column")).to_have_count(4)
    assert hands.acts <= 1


def test_t4_truncated_samples_of_low_reward_are_one_query_away(at_step: Callable[..., Hands]) -> None:
    hands = at_step(name="kept")
    hands.enter_query("is:truncated score<0.2")
    expect(hands.page.locator("#found b").first).to_have_text("2")
    expect(hands.page.locator("#rows tr[data-id]")).to_have_count(2)
    assert hands.acts <= 1


def test_t5_a_phrase_is_one_query_away_and_marked_in_list_and_pane(at_step: Callable[..., Hands]) -> None:
    hands = at_step()
    hands.enter_query('"double check"')
    with_it = [row for row in read_lines(V0 / "rollout" / "5.jsonl") if "double check" in row["output"]]
    expect(hands.page.locator("#found b").first).to_have_text(str(len(with_it)))
    expect(hands.page.locator("#rows .snippet mark.hit")).to_have_count(len(with_it))
    for hit in hands.page.locator("#rows .snippet mark.hit").all():
        expect(hit).to_have_text("double check", ignore_case=True)
    reached = hands.page.locator("#sample .response mark.hit.reached")
    expect(reached).to_have_text("double check", ignore_case=True)
    expect(reached).to_be_in_viewport()
    assert 0 < len(with_it) < ROWS and hands.acts <= 1


def test_t6_a_bad_generation_is_flagged_with_its_reason_by_two_keys(at_step: Callable[..., Hands]) -> None:
    hands = at_step(step="3")
    first = rows(hands.page)[0]
    hands.press("f")
    hands.press("1")
    expect(hands.page.locator(f"#r-{first} .tag.flag")).to_be_visible()
    assert hands.acts <= 2


def test_t7_one_key_copies_the_link_to_exactly_this(
    at_step: Callable[..., Hands], person: Callable[..., Visit], members: Members
) -> None:
    hands = at_step("?q=score<0.5&sort=chars")
    hands.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    hands.press("j")
    chosen = rows(hands.page)[1]
    expect(hands.page.locator(f"#sample article[data-id='{chosen}']")).to_be_visible()
    hands.acts = 0
    hands.press("y")
    expect(hands.page.locator(".toast")).to_be_visible()
    link = str(hands.page.evaluate("navigator.clipboard.readText()"))
    assert "/steps/5/" in link and hands.acts <= 1
    other = person(members.add(PROJECT, "mina")).page
    other.goto(link)
    expect(other.locator(f"#sample article[data-id='{chosen}']")).to_be_visible()
    assert rows(other) == rows(hands.page) and selected(other) == [chosen]


def test_t8_two_runs_are_compared_on_the_same_validation_prompts_by_two_acts(at_step: Callable[..., Hands]) -> None:
    hands = at_step("?split=eval", step="2")
    hands.press("c")
    hands.click(hands.page.get_by_role("link", name="tasks v1 @latest"))
    expect(hands.page.locator("#compare")).to_contain_text("Both correct")
    assert hands.acts <= 2


def test_t9_a_step_that_arrives_is_seen_without_an_act(visit: Visit, training: Training) -> None:
    training.pushed(1, 4)
    hands = Hands(visit.go(f"/runs/{training.uid}/steps/latest/"))
    training.push(2, generations(2, 5))
    expect(hands.page.locator("#rows tr[data-id]")).to_have_count(5)
    assert hands.acts == 0
