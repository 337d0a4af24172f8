"""The nine most frequent tasks of researchers, on real dumps, with a maximum of clicks, keys and queries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Members
from tests.browser.support.measure import Site, Visit, list_row_ids, list_selected_ids
from tests.browser.support.sites import NGINX
from tests.browser.support.training import PROJECT, Training, generations
from tests.rolloutdeck.support.fake_server import wait_until

pytestmark = NGINX

DATA = Path(__file__).parents[1] / "data"
V0 = DATA / "verl_jsonl" / "v0"
ROWS = 32  # of each file there


class ActionCounter:
    """Does what a person does on a page; `count` is the number of actions."""

    def __init__(self, page: Page) -> None:
        self.page, self.count = page, 0

    def press(self, key: str) -> None:
        self.count += 1
        self.page.keyboard.press(key)

    def click(self, target: Locator) -> None:
        self.count += 1
        target.click()

    def enter_query(self, q: str) -> None:
        """Counts a typed query as one action."""
        self.count += 1
        self.page.keyboard.press("/")
        self.page.keyboard.type(q)
        self.page.keyboard.press("Enter")


@pytest.fixture(scope="session")
def runs(site: Site) -> dict[str, str]:
    """Real verl dumps imported as a person would; uids by name."""
    import_folder(site, DATA / "verl_jsonl" / "v0", "tasks v0")
    import_folder(site, DATA / "verl_jsonl" / "v1", "tasks v1")
    import_folder(site, DATA / "verl_skip" / "main", "tasks kept", "--tokenizer", str(DATA / "tokenizer"))
    result = {run["name"]: run["id"] for run in site.product.get("runs/?project=math")["results"]}
    wait_until(lambda: site.product.get(f"samples/?run={result['tasks kept']}&split=train&q=is:truncated")["count"] > 0)
    return {name: result[f"tasks {name}"] for name in ("v0", "v1", "kept")}


def import_folder(site: Site, folder: Path, name: str, *more: str) -> None:
    words = ("import", str(folder), "--project", PROJECT, "--run", name, *more)
    assert site.product.command(*words).wait(120) == 0


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


@pytest.fixture
def open_step(visit: Visit, runs: dict[str, str]) -> Callable[..., ActionCounter]:
    def open_page(query: str = "", *, name: str = "v0", step: str = "latest") -> ActionCounter:
        page = visit.go(f"/runs/{runs[name]}/steps/{step}/{query}")
        expect(page.locator("#sample article")).to_be_visible()
        return ActionCounter(page)

    return open_page


def test_t1_the_worst_sample_of_the_latest_step_is_one_key_away(open_step: Callable[..., ActionCounter]) -> None:
    actions = open_step("?split=eval", step="2")
    actions.press("w")
    worst = min(row["score"] for row in read_lines(V0 / "val" / "5.jsonl"))
    expect(actions.page.locator("#strip .strip-name")).to_contain_text("step 5")
    expect(actions.page.locator("#sample .sample-head")).to_contain_text(f"{worst:.2f}")
    assert actions.count <= 1


def test_t2_one_prompt_over_the_steps_is_seen_without_an_action_and_read_with_one_key(
    open_step: Callable[..., ActionCounter],
) -> None:
    actions = open_step("?split=eval")
    expect(actions.page.locator("#sample .past a")).to_have_count(4)
    before = actions.page.locator("#sample article").get_attribute("data-id")
    assert actions.count == 0
    actions.press("[")
    expect(actions.page.locator("#sample article")).not_to_have_attribute("data-id", before or "")
    expect(actions.page.locator("#strip .strip-name")).to_contain_text("step 4")
    expect(actions.page).to_have_url(re.compile("split=eval"))
    assert actions.count <= 1


def test_t3_all_responses_of_a_group_are_seen_without_an_action_and_read_with_one_key(
    open_step: Callable[..., ActionCounter],
) -> None:
    actions = open_step(name="v1")
    expect(actions.page.locator("#sample .cells .cell")).to_have_count(4)
    assert actions.count == 0
    actions.press("g")
    expect(actions.page.locator(".board-column")).to_have_count(4)
    assert actions.count <= 1


def test_t4_truncated_samples_of_low_reward_are_one_query_away(open_step: Callable[..., ActionCounter]) -> None:
    actions = open_step(name="kept")
    actions.enter_query("is:truncated score<0.2")
    expect(actions.page.locator("#found b").first).to_have_text("2")
    expect(actions.page.locator("#rows tr[data-id]")).to_have_count(2)
    assert actions.count <= 1


def test_t5_a_phrase_is_one_query_away_and_marked_in_list_and_pane(open_step: Callable[..., ActionCounter]) -> None:
    actions = open_step()
    actions.enter_query('"double check"')
    matching = [row for row in read_lines(V0 / "rollout" / "5.jsonl") if "double check" in row["output"]]
    expect(actions.page.locator("#found b").first).to_have_text(str(len(matching)))
    expect(actions.page.locator("#rows .snippet mark.hit")).to_have_count(len(matching))
    for hit in actions.page.locator("#rows .snippet mark.hit").all():
        expect(hit).to_have_text("double check", ignore_case=True)
    reached = actions.page.locator("#sample .response mark.hit.reached")
    expect(reached).to_have_text("double check", ignore_case=True)
    expect(reached).to_be_in_viewport()
    assert 0 < len(matching) < ROWS and actions.count <= 1


def test_t6_a_bad_generation_is_flagged_with_its_reason_by_two_keys(open_step: Callable[..., ActionCounter]) -> None:
    actions = open_step(step="3")
    first = list_row_ids(actions.page)[0]
    actions.press("f")
    actions.press("1")
    expect(actions.page.locator(f"#r-{first} .tag.flag")).to_be_visible()
    assert actions.count <= 2


def test_t7_one_key_copies_the_link_to_the_same_query_and_sample(
    open_step: Callable[..., ActionCounter], open_visit: Callable[..., Visit], members: Members
) -> None:
    actions = open_step("?q=score<0.5&sort=chars")
    actions.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    actions.press("j")
    chosen = list_row_ids(actions.page)[1]
    expect(actions.page.locator(f"#sample article[data-id='{chosen}']")).to_be_visible()
    actions.count = 0
    actions.press("y")
    expect(actions.page.locator(".toast")).to_be_visible()
    link = str(actions.page.evaluate("navigator.clipboard.readText()"))
    assert "/steps/5/" in link and actions.count <= 1
    other = open_visit(members.add(PROJECT, "mina")).page
    other.goto(link)
    expect(other.locator(f"#sample article[data-id='{chosen}']")).to_be_visible()
    assert list_row_ids(other) == list_row_ids(actions.page) and list_selected_ids(other) == [chosen]


def test_t8_two_runs_are_compared_on_the_same_validation_prompts_by_two_actions(
    open_step: Callable[..., ActionCounter],
) -> None:
    actions = open_step("?split=eval", step="2")
    actions.press("c")
    actions.click(actions.page.get_by_role("link", name="tasks v1 @latest"))
    expect(actions.page.locator("#compare")).to_contain_text("Both correct")
    assert actions.count <= 2


def test_t9_a_step_that_arrives_is_seen_without_an_action(visit: Visit, training: Training) -> None:
    training.push_and_wait(1, 4)
    actions = ActionCounter(visit.go(f"/runs/{training.uid}/steps/latest/"))
    training.push(2, generations(2, 5))
    expect(actions.page.locator("#rows tr[data-id]")).to_have_count(5)
    assert actions.count == 0
