"""`record` with AReaL's own workflow, groups and statistics, next to a receiver. AREAL is a checkout of AReaL;
TRAINERS_PYTHON is Python 3.12 with what it imports (torch, aiohttp, colorlog, flask, numba, uvloop)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.trainers.verl.process import ROOT, Training, require_python, train

pytestmark = pytest.mark.trainers


def run_training(folder: Path, **environ: str) -> Training:
    checkout = os.environ.get("AREAL")
    if not checkout:
        pytest.skip("needs AREAL, a checkout of AReaL (github.com/areal-project/AReaL)")
    if subprocess.run([require_python(), "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]).returncode:
        pytest.skip("AReaL needs Python 3.12")
    path = os.pathsep.join([checkout, str(ROOT)])
    return train("../../areal/inside/training.py", folder=folder, PYTHONPATH=path, ROLLOUTDECK_TOKENS="all", **environ)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run_training(tmp_path_factory.mktemp("areal"))


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_rows_are_what_the_workflow_returned(training: Training, split: str) -> None:
    rows = sorted(training.rows(split, 5), key=lambda row: row["response"])
    assert [row["response"].replace(" ", "") for row in rows] == ["1+1=2", "1+1=3"]
    assert [row["score"] for row in rows] == [1.0, 0.0]
    for row in rows:
        assert row["prompt"].replace(" ", "") == "user:1+1\n" and row["ground_truth"] == "1+1=2"
        assert (row["policy_version"], row["weight_versions"], row["task_id"]) == (4, [4, 5], 3)
        assert row["logprobs"] == [-0.5] * 5 and row["response_mask"] == [1] * 5


def test_the_process_of_rollouts_and_the_trainer_are_one_run_and_one_attempt(training: Training) -> None:
    assert (
        len(
            {uid for uid, _, _ in training.receiver.dumps}
            | {body["uid"] for body in training.receiver.posted("/runs/")}
        )
        == 1
    )
    opened = training.receiver.posted("/runs/")
    assert {(body["project"], body["name"]) for body in opened} == {("math", "trial0")}
    attempts = {query["attempt"] for _, query, _ in training.receiver.dumps}
    assert attempts == {body["attempt"] for body in opened} and len(attempts) == 1


def test_the_metrics_are_those_that_areal_commits(training: Training) -> None:
    assert training.values(1) == {"ppo_actor/loss": 0.5, "reward": 0.5}
    assert training.outcomes() == ["finished"]


def test_the_rollouts_end_normally_without_a_server(tmp_path: Path) -> None:
    lines = run_training(tmp_path, ROLLOUTDECK_URL="http://127.0.0.1:9").done.stdout.splitlines()
    assert lines[-1] == "trained" and sum(line.startswith("[1.0, 0.0]") for line in lines) == 2
