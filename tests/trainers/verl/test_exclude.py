"""What is flagged is left out of what real verl replays: the rest is what verl itself would have selected."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle.batches.batch import open_batch
from rolloutdeck.safe_pickle.rewrite.exclude import exclude_prompts, find_row_groups
from tests.rolloutdeck.safe_pickle.dumps import MAIN, NUMPY, QUEUE, V2, WITHOUT_SCORES
from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.interpreter import run_script
from tests.trainers.verl.inside.constants import WORDS
from tests.trainers.verl.process import ROOT, Training
from tests.trainers.verl.test_replay import (
    DUMPS,
    call_api,
    create_plan,
    find_run,
    list_events,
    product,
    read_answers,
    read_reason,
    read_trained_tokens,
    run_training,
    source,
    upload_steps,
    v1_source,
)

__all__ = ["product", "source", "v1_source"]
pytestmark = pytest.mark.trainers

FILES = {MAIN: (5, 9), NUMPY: (0,), QUEUE: (3, 30), V2: (31,), WITHOUT_SCORES: (0,)}


def exclude_flagged_rows(path: Path, target: Path, flagged: tuple[int, ...]) -> list[Any]:
    exclude_prompts(path, target, flagged, answers=4)
    with open_batch(path) as batch:
        groups = find_row_groups(batch, 4)
    excluded = {groups[row] for row in flagged}
    return [str(path), str(target), [row for row, group in enumerate(groups) if group not in excluded]]


def test_a_batch_without_excluded_rows_equals_the_rows_that_real_verl_selects(tmp_path: Path) -> None:
    pairs = [
        exclude_flagged_rows(path, tmp_path / f"{position}{path.suffix}", flagged)
        for position, (path, flagged) in enumerate(FILES.items())
    ]
    script = Path(__file__).with_name("select_with_verl.py")
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = run_script(script, [json.dumps(pairs)], cwd=tmp_path, env=env)
    assert done.stdout.split() == ["equal"] * len(FILES), done.stderr[-3000:]


def flag_response(product: Product, run: str, response: str, step: int = 1) -> None:
    """Flags the sample of a step with this response as bad."""
    result = product.get(f"samples/?run={run}&split=train&step={step}&page_size=50")["results"]
    (sample,) = [item["id"] for item in result if product.get(f"samples/{item['id']}/")["response"] == response]
    call_api(product, "POST", "flags/", {"sample": sample, "label": "bad", "reason": "", "text": ""})


def test_v1_replays_the_prompts_without_a_flag_and_says_what_it_left_out(
    product: Product, v1_source: Training, tmp_path: Path
) -> None:
    run = find_run(product, "queued")
    flag_response(product, run, "wrong 2")
    create_plan(product, "unflagged", run, {2: 1}, exclude_flagged=True)
    result = run_training(product, "v1.py", "v1-unflagged", tmp_path, "other", ROLLOUTDECK_PLAN="unflagged")
    pinned = v1_source.json("seen.json")[0]
    messages = {key: row["responses"] for key, row in pinned.items() if not key.startswith("pad")}
    flagged = next(key.split("_")[0] for key, ids in messages.items() if ids == encode_response("wrong 2"))
    left = sorted(ids for key, ids in messages.items() if key.split("_")[0] != flagged)
    assert len(left) == 2
    assert read_trained_tokens(result, 2) == sorted(
        left * 2
    )  # verl goes around the prompts that it has until its batch is full
    wait_until(lambda: list_events(product, "v1-unflagged"))
    assert list_events(product, "v1-unflagged") == [(2, "hit", 2)]
    why = read_reason(product, "v1-unflagged", 2)
    assert "without 1 of its 2 prompts (2 of 4 rows): these prompts have 1 flagged" in why
    assert "V1 repeats prompts until its batch is full." in why


def encode_response(text: str) -> list[int]:
    """The token ids of a response."""
    return [WORDS.index(word) for word in text.split()]


def test_v0_generates_a_step_if_the_pin_has_fewer_rows_than_its_batch_without_the_flagged_ones(
    product: Product, source: Training, tmp_path: Path
) -> None:
    run = find_run(product, "source")
    flag_response(product, run, "wrong 2")
    create_plan(product, "shorter", run, {1: 1}, exclude_flagged=True)
    result = run_training(product, "v0.py", "v0-shorter", tmp_path, "other", ROLLOUTDECK_PLAN="shorter")
    assert read_answers(result, 1) != read_answers(source, 1)
    wait_until(lambda: list_events(product, "v0-shorter"))
    assert list_events(product, "v0-shorter") == [(1, "refused", None)]
    assert "rows: 2 pinned, 4 requested" in read_reason(product, "v0-shorter", 1)
    assert "V0 needs exactly as many rows as its batch has" in read_reason(product, "v0-shorter", 1)


def test_fully_async_replays_a_prompt_and_generates_the_one_that_is_flagged(
    product: Product, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = tmp_path_factory.mktemp("fed"), tmp_path_factory.mktemp("fed-again")
    dumps = [word.replace("rollout.", "async_rollout.").replace("[1,2]", "[2,3]") for word in DUMPS]
    environ = {"ROLLOUTDECK_ATTEMPT": "job"}
    run_training(product, "fully_async.py", "fed", first, "rollouter", "", *dumps, **environ)
    upload_steps(product, "fed", first / "dumps")
    run_training(product, "fully_async.py", "fed", first, "trainer", "", *dumps, **environ)
    run = find_run(product, "fed")
    wait_until(lambda: product.get(f"samples/?run={run}&split=train&step=1")["results"])
    flag_response(product, run, "wrong 4")  # of the prompt that was fed as number 2; 3 has none
    pin = call_api(product, "POST", "pins/", {"run": run, "step": 1, "note": ""})
    assert (pin["available"], pin["prompts"]) == (2, 4)
    plan = {"plan": "fed", "action": "cache", "exclude_flagged": True}
    entries = [{"pin": pin["id"], "target_step": 1}]
    call_api(product, "PUT", "projects/default/replay-plan/", {**plan, "entries": entries}, **{"If-Match": '"0"'})
    environ |= {"ROLLOUTDECK_PLAN": "fed"}
    run_training(product, "fully_async.py", "fed-again", second, "rollouter", "plus", **environ)
    result = run_training(product, "fully_async.py", "fed-again", second, "trainer", "plus", **environ)
    assert result.json("said-1.json") == ["sum is 3 plus", "wrong 4", "sum is 4", "wrong 5"]
    wait_until(lambda: len(list_events(product, "fed-again")) == 2)
    assert list_events(product, "fed-again") == [(2, "refused", None), (3, "hit", 2)]


def save_rule(product: Product, query: str, **values: str) -> int:
    """Saves a rule as the project's guidance and returns the version."""
    current = product.get("projects/default/guidance/")["version"]
    rules = [{"key": "hack", "query": query, "action": "drop", "target": "prompt", **values}]
    body = {"rules": rules, "baseline": "trainer", "base_version": current}
    return int(call_api(product, "PUT", "projects/default/guidance/", body)["version"])


def read_advantages(training: Training, step: int) -> dict[str, list[list[float]]]:
    """The advantages of a step by the ids of their responses, in V0 and V1."""
    seen = training.json("seen.json")[step - 1]
    rows = seen["rows"] if "rows" in seen else [row for key, row in seen.items() if not key.startswith("pad")]
    result: dict[str, list[list[float]]] = {}
    for row in rows:
        result.setdefault(str(row.get("ids", row.get("responses"))), []).append(row["advantages"])
    return result


@pytest.mark.parametrize("trainer", ["v0", "v1"])
def test_a_masked_sample_has_no_advantage_and_all_others_keep_theirs(
    product: Product, source: Training, v1_source: Training, tmp_path: Path, trainer: str
) -> None:
    name, script, target = {"v0": ("source", "v0.py", 1), "v1": ("queued", "v1.py", 2)}[trainer]
    run = find_run(product, name)
    flag_response(product, run, "wrong 2")
    version = save_rule(product, "is:flagged", action="mask", target="response")
    found = {}
    for action in ("keep", "mask"):
        plan = f"{trainer}-{action}"
        create_plan(product, plan, run, {target: 1}, on_selected=action, selected_by="rules")
        found[action] = run_training(product, script, plan, tmp_path / action, "other", ROLLOUTDECK_PLAN=plan)
        wait_until(lambda plan=plan: list_events(product, plan))
        assert [outcome for _, outcome, _ in list_events(product, plan)] == ["hit"]
    kept, masked = (read_advantages(found[action], target) for action in ("keep", "mask"))
    changed = {ids for ids in kept if kept[ids] != masked[ids]}
    assert len(changed) == 1 and kept.keys() == masked.keys()
    assert all(not any(row) for row in masked[changed.pop()])
    (event,) = product.get(f"runs/{find_run(product, f'{trainer}-mask')}/replays/")["results"]
    assert (event["selected_action"], event["selected"], event["guidance_version"]) == ("mask", 1, version)
    line = f"1 sample masked by version {version} of the guidance rules."
    assert line in found["mask"].done.stderr + found["mask"].done.stdout
