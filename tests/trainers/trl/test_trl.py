"""The callback inside real TRL trainers, next to a receiver."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

SCRIPT = "../../trl/inside/training.py"


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(SCRIPT, request.param, folder=tmp_path_factory.mktemp(request.param), ROLLOUTDECK_TOKENS="all")


def list_trained_rows(training: Training, split: str, step: int) -> list[dict[str, Any]]:
    """Returns the rows that the trainer had, in its order."""
    created: list[dict[str, Any]] = []
    for item in training.json("seen.json"):
        if (item["split"], item["step"]) == (split, step):
            rewards = [
                dict(zip(item["rewards"], values, strict=True))
                for values in zip(*item["rewards"].values(), strict=True)
            ]
            columns = zip(
                item["prompt"], item["completion"], item["ids"], item["advantages"], item["first"], rewards, strict=True
            )
            names = ("prompt", "response", "response_ids", "advantages", "first", "rewards")
            created += [dict(zip(names, values, strict=True)) for values in columns]
    return created


def list_shown_rows(training: Training, split: str, step: int) -> list[dict[str, Any]]:
    names = ("prompt", "response", "response_ids", "advantages", "first", "rewards")
    return [{name: row[name] for name in names} for row in training.rows(split, step)]


def replace_nan_with_none(row: dict[str, Any]) -> dict[str, Any]:
    rewards = {name: None if math.isnan(value) else value for name, value in row["rewards"].items()}
    return {**row, "rewards": rewards}


STEPS = [("train", 1, 8), ("train", 2, 8), ("train", 3, 8), ("eval", 2, 12), ("eval", 3, 12)]


@pytest.mark.parametrize(("split", "step", "count"), STEPS)
def test_the_rows_are_those_that_the_trainer_held(training: Training, split: str, step: int, count: int) -> None:
    rows = list_shown_rows(training, split, step)
    assert len(rows) == count
    assert rows == [replace_nan_with_none(row) for row in list_trained_rows(training, split, step)]


def test_a_row_has_its_place_its_weighted_sum_and_the_columns_of_the_data_set(training: Training) -> None:
    for row in training.rows("train", 1) + training.rows("eval", 2):
        assert row["answer"] == row["ground_truth"]
        assert row["prompt"] == f"What is {int(row['answer']) // 2} + {int(row['answer']) // 2 + 1}?"
        assert row["score"] == pytest.approx(row["rewards"]["letters"] + (row["rewards"]["short"] or 0) / 2)
        assert len(row["prompt_ids"]) == len(row["prompt"])
        assert row["truncated"] == (len(row["response_ids"]) == 12 and row["response_ids"][-1] < 256)
    assert {row["truncated"] for row in training.rows("train", 1) + training.rows("eval", 2)} == {True, False}
    assert [(row["group"], row["index"]) for row in training.rows("eval", 2)] == [
        (str(position // 4), position % 4) for position in range(12)
    ]
    by_group = {(row["group"], row["prompt"]) for row in training.rows("train", 1)}
    assert len(by_group) == len({group for group, _ in by_group}) == 2


def test_the_metrics_are_those_of_the_trainers_log(training: Training) -> None:
    for logged in training.json("result.json")["history"]:
        for name, value in logged.items():
            named = f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
            if name != "step":
                assert training.values(logged["step"])[named] == value, name
    assert training.outcomes() == ["finished"]


def test_each_step_records_its_generation_time(training: Training) -> None:
    assert all(0 < training.values(step)["timing_s/gen"] < 100 for step in (1, 2, 3))


def test_the_parquet_files_of_a_run_have_fewer_rows_than_are_recorded(training: Training) -> None:
    """An eval overwrites the file of its step; RLOO writes none."""
    files = sorted((training.folder / "out").glob("completions/*.parquet"))
    written = sum(pq.read_table(file).num_rows for file in files)
    assert written < sum(len(training.rows(split, step)) for split, step, _ in STEPS) == 48


def test_a_trainer_that_trains_twice_has_two_runs(tmp_path: Path) -> None:
    """As in a notebook. Each has the rows, metrics and files of its own training."""
    found = train(SCRIPT, "grpo", "twice", "keep", folder=tmp_path)
    held = [item for item in found.json("seen.json") if item["split"] == "train"]
    assert [item["step"] for item in held] == [1, 2, 3] * 2
    shown: dict[str, list[tuple[int, list[list[int]]]]] = {}
    for uid, query, body in found.receiver.dumps:
        if query["split"] == "train":
            ids = [json.loads(line)["response"] for line in body.splitlines()]
            shown.setdefault(uid, []).append((int(query["step"]), ids))
    assert len(shown) == 2
    made = [(item["step"], item["completion"]) for item in held]
    assert list(shown.values()) == [made[:3], made[3:]]
    assert found.outcomes() == ["finished", "finished"]
    artifacts = [
        path.split("/runs/")[1].split("/")[0] for path, _ in found.receiver.posts if path.endswith("/artifacts/")
    ]
    assert [artifacts.count(uid) for uid in shown] == [3, 3]


def test_samples_of_several_evaluation_data_sets_have_their_own_data_source(tmp_path: Path) -> None:
    found = train(SCRIPT, "grpo", "evals", folder=tmp_path)
    sources = [[row.get("data_source") for row in found.rows("eval", step)] for step in (2, 3)]
    assert sources == [["low"] * 4 + ["high"] * 8] * 2
    assert {row.get("data_source") for row in found.rows("train", 1)} == {None}
