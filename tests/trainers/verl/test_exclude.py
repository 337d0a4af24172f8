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
from tests.rolloutdeck.support.fake_server import until
from tests.support.server import Product
from tests.trainers.interpreter import run_script
from tests.trainers.verl.inside.constants import WORDS
from tests.trainers.verl.process import ROOT, Training
from tests.trainers.verl.test_replay import (
    DUMPS,
    answers,
    call_api,
    events,
    planned,
    product,
    queued,
    reason,
    run_of,
    source,
    trained_tokens,
    training,
    upload_steps,
)

__all__ = ["product", "queued", "source"]
pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]

FILES = {MAIN: (5, 9), NUMPY: (0,), QUEUE: (3, 30), V2: (31,), WITHOUT_SCORES: (0,)}


def selected(path: Path, target: Path, flagged: tuple[int, ...]) -> list[Any]:
    exclude_prompts(path, target, flagged, answers=4)
    with open_batch(path) as batch:
        groups = find_row_groups(batch, 4)
    gone = {groups[row] for row in flagged}
    return [str(path), str(target), [row for row, group in enumerate(groups) if group not in gone]]


def test_what_is_left_is_what_real_verl_selects_of_the_whole_value_by_value(tmp_path: Path) -> None:
    pairs = [
        selected(path, tmp_path / f"{position}{path.suffix}", flagged)
        for position, (path, flagged) in enumerate(FILES.items())
    ]
    script = Path(__file__).with_name("select_with_verl.py")
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = run_script(script, [json.dumps(pairs)], cwd=tmp_path, env=env)
    assert done.stdout.split() == ["equal"] * len(FILES), done.stderr[-3000:]


def flag(product: Product, run: str, response: str, step: int = 1) -> None:
    """The sample of a step with this response is flagged bad."""
    result = product.get(f"samples/?run={run}&split=train&step={step}&page_size=50")["results"]
    (sample,) = [item["id"] for item in result if product.get(f"samples/{item['id']}/")["response"] == response]
    call_api(product, "POST", "flags/", {"sample": sample, "label": "bad", "reason": "", "text": ""})


def test_v1_replays_the_prompts_without_a_flag_and_says_what_it_left_out(
    product: Product, queued: Training, tmp_path: Path
) -> None:
    run = run_of(product, "queued")
    flag(product, run, "wrong 2")
    planned(product, "unflagged", run, {2: 1}, exclude_flagged=True)
    result = training(product, "v1.py", "v1-unflagged", tmp_path, "other", ROLLOUTDECK_PLAN="unflagged")
    pinned = queued.json("seen.json")[0]
    messages = {key: row["responses"] for key, row in pinned.items() if not key.startswith("pad")}
    flagged = next(key.split("_")[0] for key, ids in messages.items() if ids == answer("wrong 2"))
    left = sorted(ids for key, ids in messages.items() if key.split("_")[0] != flagged)
    assert len(left) == 2
    assert trained_tokens(result, 2) == sorted(
        left * 2
    )  # verl goes around the prompts that it has until its batch is full
    until(lambda: events(product, "v1-unflagged"))
    assert events(product, "v1-unflagged") == [(2, "hit", 2)]
    why = reason(product, "v1-unflagged", 2)
    assert "without 1 of its 2 prompts (2 of 4 rows): these prompts have 1 flagged" in why
    assert "V1 repeats prompts until its batch is full." in why


def answer(text: str) -> list[int]:
    """The token ids of a response."""
    return [WORDS.index(word) for word in text.split()]


def test_v0_generates_where_what_is_left_is_not_as_many_rows_as_it_trains_on(
    product: Product, source: Training, tmp_path: Path
) -> None:
    run = run_of(product, "source")
    flag(product, run, "wrong 2")
    planned(product, "shorter", run, {1: 1}, exclude_flagged=True)
    result = training(product, "v0.py", "v0-shorter", tmp_path, "other", ROLLOUTDECK_PLAN="shorter")
    assert answers(result, 1) != answers(source, 1)
    until(lambda: events(product, "v0-shorter"))
    assert events(product, "v0-shorter") == [(1, "refused", None)]
    assert "rows: 2 pinned, 4 requested" in reason(product, "v0-shorter", 1)
    assert "V0 needs exactly as many rows as its batch has" in reason(product, "v0-shorter", 1)


def test_fully_async_replays_a_prompt_and_generates_the_one_that_is_flagged(
    product: Product, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = tmp_path_factory.mktemp("fed"), tmp_path_factory.mktemp("fed-again")
    dumps = [word.replace("rollout.", "async_rollout.").replace("[1,2]", "[2,3]") for word in DUMPS]
    environ = {"ROLLOUTDECK_ATTEMPT": "job"}
    training(product, "fully_async.py", "fed", first, "rollouter", "", *dumps, **environ)
    upload_steps(product, "fed", first / "dumps")
    training(product, "fully_async.py", "fed", first, "trainer", "", *dumps, **environ)
    run = run_of(product, "fed")
    until(lambda: product.get(f"samples/?run={run}&split=train&step=1")["results"])
    flag(product, run, "wrong 4")  # of the prompt that was fed as number 2; 3 has none
    pin = call_api(product, "POST", "pins/", {"run": run, "step": 1, "note": ""})
    assert (pin["available"], pin["prompts"]) == (2, 4)
    plan = {"plan": "fed", "action": "cache", "exclude_flagged": True}
    entries = [{"pin": pin["id"], "target_step": 1}]
    call_api(product, "PUT", "projects/default/replay-plan/", {**plan, "entries": entries}, **{"If-Match": '"0"'})
    environ |= {"ROLLOUTDECK_PLAN": "fed"}
    training(product, "fully_async.py", "fed-again", second, "rollouter", "plus", **environ)
    result = training(product, "fully_async.py", "fed-again", second, "trainer", "plus", **environ)
    assert result.json("said-1.json") == ["sum is 3 plus", "wrong 4", "sum is 4", "wrong 5"]
    until(lambda: len(events(product, "fed-again")) == 2)
    assert events(product, "fed-again") == [(2, "refused", None), (3, "hit", 2)]
