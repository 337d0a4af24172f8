"""The plug-in in OpenRLHF's own generator, experience maker and trainer, in processes of Ray, next to a receiver.
OPENRLHF is a checkout of OpenRLHF; TRAINERS_PYTHON needs torch, ray, transformers, datasets and tqdm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.trainers.verl.process import ROOT, Training, train

pytestmark = pytest.mark.trainers


def run_training(folder: Path, **environ: str) -> Training:
    checkout = os.environ.get("OPENRLHF")
    if not checkout:
        pytest.skip("needs OPENRLHF, a checkout of OpenRLHF (github.com/OpenRLHF/OpenRLHF)")
    path = os.pathsep.join([checkout, str(ROOT)])
    script = "../../openrlhf/inside/training.py"
    return train(script, folder=folder, PYTHONPATH=path, ROLLOUTDECK_TOKENS="all", **environ)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run_training(tmp_path_factory.mktemp("openrlhf"))


@pytest.mark.parametrize(("step", "labels"), [(1, ["1", "1", "2", "2"]), (2, ["3", "3", "4", "4"])])
def test_the_rows_of_a_step_are_its_experiences(training: Training, step: int, labels: list[str]) -> None:
    rows = sorted(training.rows("train", step), key=lambda row: (row["prompt"], row["response"]))
    assert [row["ground_truth"] for row in rows] == labels
    assert [row["score"] for row in rows] == [1.0, 0.0] * 2
    for row in rows:
        assert row["prompt"] == f"{int(row['ground_truth']) - 1}+1="
        assert int(row["response"]) == int(row["ground_truth"]) + (0 if row["score"] else 1)
        assert row["prompt_ids"] == [*map(ord, row["prompt"])] and row["response_ids"] == [*map(ord, row["response"])]
        assert row["logprobs"] == [-0.5] and row["response_mask"] == [1] and len(row["advantages"]) == 1
        assert row["metrics"]["format"] == 1.0 and row["truncated"] is False


def test_metrics_and_an_evaluation_have_openrlhfs_step(training: Training) -> None:
    values = training.values(2)
    assert values["train/rollout/reward_mean"] == 0.5 and values["train/policy_loss"] == 0.25
    assert values["eval/eval_sums_pass1"] == 1.0
    assert [(row["prompt"], row["score"]) for row in training.rows("eval", 2)] == [("0+1=", 1.0)]


def test_all_processes_of_ray_are_one_run(training: Training) -> None:
    opened = training.receiver.posted("/runs/")
    assert {(body["project"], body["name"], body["framework"]) for body in opened} == {("math", "ppo", "openrlhf")}
    assert len({body["uid"] for body in opened}) == 1


def test_the_training_ends_normally_without_a_server(tmp_path: Path) -> None:
    assert "trained" in run_training(tmp_path, ROLLOUTDECK_URL="http://127.0.0.1:9").done.stdout
