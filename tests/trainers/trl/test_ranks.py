"""Pinned steps inside a real GRPOTrainer in two processes (gloo, on the CPU), against the whole product."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.support.server import Product
from tests.trainers.trl.test_replay import OUTCOME, SCRIPT, list_artifacts
from tests.trainers.verl.process import Training, require_python, train
from tests.trainers.verl.test_replay import create_plan, find_run, list_events, read_reason

pytestmark = pytest.mark.trainers

RANKS = 2


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    require_python()
    with Product() as product:
        yield product


def run_training(product: Product, folder: Path, name: str, *words: str, **environ: str) -> Training:
    variables = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
    variables |= {"ROLLOUTDECK_RUN": name, "OMP_NUM_THREADS": "1", **environ}
    return train(SCRIPT, "grpo", *words, folder=folder, processes=RANKS, **variables)


@pytest.fixture(scope="module")
def source(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Training:
    result = run_training(product, tmp_path_factory.mktemp("source"), "source", "keep", ROLLOUTDECK_TOKENS="all")
    wait_until(lambda: [item["state"] for item in list_artifacts(product, "source")] == ["ready"] * 3, 60)
    return result


@pytest.fixture(scope="module")
def replayed(product: Product, source: Training, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Steps 1 and 2 are replayed, and 2 once more at 3, which has other prompts."""
    create_plan(product, "again", find_run(product, "source"), {1: 1, 2: 2, 3: 2})
    folder = tmp_path_factory.mktemp("again")
    return run_training(product, folder, "again", "replay", "other", ROLLOUTDECK_PLAN="again")


def read_generation(training: Training, step: int) -> list[dict[str, Any]]:
    """Returns the batch of each process."""
    seen = [item for name in ("seen.json", "seen-1.json") for item in training.json(name)]
    return [item for item in seen if (item["split"], item["step"]) == ("train", step)]


def read_outcome(training: Training, step: int) -> list[float]:
    (logged,) = [item for item in training.json("result.json")["history"] if item["step"] == step and "loss" in item]
    return [logged[name] for name in OUTCOME]


def list_samples(product: Product, name: str, split: str, step: int) -> list[dict[str, Any]]:
    query = f"samples/?run={find_run(product, name)}&step={step}&split={split}"
    result: list[dict[str, Any]] = product.get(query)["results"]
    return result


def test_two_processes_are_one_launch_of_one_run_whose_rows_keep_their_places(
    product: Product, source: Training
) -> None:
    result = product.get("runs/?project=default")["results"]
    assert [run["name"] for run in result if run["name"].startswith("source")] == ["source"]
    run = product.get(f"runs/{find_run(product, 'source')}/")
    assert len(run["attempts"]) == 1
    wait_until(lambda: len(list_samples(product, "source", "train", 3)) == 16, 60)
    for step in (1, 2, 3):
        shown = sorted(
            list_samples(product, "source", "train", step), key=lambda row: (int(row["group"]), row["index"])
        )
        assert [row["index"] for row in shown] == [0, 1, 2, 3] * 4
        held = [
            pair
            for item in read_generation(source, step)
            for pair in zip(item["prompt"], item["advantages"], strict=True)
        ]
        assert [(row["expected"], row["advantage"]) for row in shown] == [
            (compute_answer(requested), pytest.approx(own, rel=1e-6)) for requested, own in held
        ]


def compute_answer(prompt: str) -> str:
    """Returns `7` for `What is 3 + 4?`."""
    return str(sum(int(number) for number in re.findall(r"\d+", prompt)))


@pytest.mark.parametrize("step", [1, 2])
def test_a_step_of_two_processes_is_replayed_to_the_same_advantages_and_losses(
    source: Training, replayed: Training, step: int
) -> None:
    assert len(read_generation(replayed, step)) == RANKS
    assert repr(read_generation(replayed, step)) == repr(read_generation(source, step))  # NaN equals itself
    assert read_outcome(replayed, step) == read_outcome(source, step)


def test_hits_are_reported_once_and_a_refusal_in_one_process_counts_for_all(
    product: Product, source: Training, replayed: Training
) -> None:
    wait_until(lambda: len(list_events(product, "again")) == 3, 60)
    assert list_events(product, "again") == [(1, "hit", 16), (2, "hit", 16), (3, "refused", None)]
    assert read_reason(product, "again", 3) == "the prompts of 8 of 8 rows are not those that were answered"
    pairs = zip(read_generation(replayed, 3), read_generation(source, 3), strict=True)
    assert [own["ids"] == before["ids"] for own, before in pairs] == [False] * RANKS


def test_one_process_with_the_batch_of_two_replays_what_two_kept(
    product: Product, source: Training, tmp_path: Path
) -> None:
    create_plan(product, "wide", find_run(product, "source"), {1: 1})
    values = {"ROLLOUTDECK_URL": product.url, "ROLLOUTDECK_TOKEN": product.token, "ROLLOUTDECK_PROJECT": "default"}
    words = ("grpo", "replay", "other", "wide")
    result = train(SCRIPT, *words, folder=tmp_path, **values, ROLLOUTDECK_RUN="wide", ROLLOUTDECK_PLAN="wide")
    (step_info,) = (item for item in result.json("seen.json") if (item["split"], item["step"]) == ("train", 1))
    assert step_info["ids"] == [ids for held in read_generation(source, 1) for ids in held["ids"]]
    assert step_info["advantages"] == [value for held in read_generation(source, 1) for value in held["advantages"]]
    wait_until(lambda: list_events(product, "wide"), 60)
    assert list_events(product, "wide") == [(1, "hit", 16)]
