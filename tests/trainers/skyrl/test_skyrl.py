"""`record` with SkyRL's own experiment, generator and training loop, next to a receiver. SKYRL is a checkout of SkyRL;
TRAINERS_PYTHON is Python 3.12 or newer with what SkyRL imports (torch, ray, loguru, torchdata, cloudpathlib)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.trainers.verl.process import ROOT, Training, require_python, train

pytestmark = pytest.mark.trainers


def run_training(folder: Path, *words: str, **environ: str) -> Training:
    checkout = os.environ.get("SKYRL")
    if not checkout:
        pytest.skip("needs SKYRL, a checkout of SkyRL (github.com/NovaSky-AI/SkyRL)")
    if subprocess.run([require_python(), "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]).returncode:
        pytest.skip("SkyRL needs Python 3.12")
    path = os.pathsep.join([checkout, f"{checkout}/skyrl-gym", str(ROOT)])
    script = "../../skyrl/inside/training.py"
    return train(script, *words, folder=folder, PYTHONPATH=path, ROLLOUTDECK_TOKENS="all", **environ)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run_training(tmp_path_factory.mktemp("skyrl"))


@pytest.mark.parametrize("step", [1, 2])
def test_the_rows_of_a_step_are_what_the_generator_returned(training: Training, step: int) -> None:
    rows = training.rows("train", step)
    assert sorted(row["score"] for row in rows) == [0.0, 0.0, 1.0, 1.0] and [row["index"] for row in rows] == [0, 1] * 2
    assert len({row["group"] for row in rows}) == 2
    for row in rows:
        number = int(row["prompt"][0]["content"].split()[0])
        assert row["ground_truth"] == str(number + 1) and row["data_source"] == "sums"
        answer = number + 1 if row["score"] else number + 2
        assert row["response"].replace(" ", "") == f"####{answer}" and row["finish_reason"] == "stop"
        assert len(row["response_ids"]) == len(row["logprobs"]) == sum(row["response_mask"]) == row["response_length"]


def test_an_evaluation_is_recorded_with_its_step(training: Training) -> None:
    assert [row["ground_truth"] for row in training.rows("eval", 2)] == ["1", "2"]
    assert not training.rows("eval", 1)


def test_the_metrics_are_those_of_skyrls_tracker(training: Training) -> None:
    values = training.values(2)
    assert values["reward/avg_raw_reward"] == 0.5 and values["trainer/global_step"] == 2
    assert values["eval/all/avg_score"] == 0.5 and "timing/generate" in values


def test_the_run_has_skyrls_names_and_config_and_ends_with_the_training(training: Training) -> None:
    run = next(body for path, body in training.receiver.posts if path.endswith("/runs/") and "config" in body)
    assert (run["project"], run["name"], run["framework"]) == ("math", "sky", "skyrl")
    assert run["config"]["trainer"]["train_batch_size"] == 2
    assert training.outcomes() == ["finished"]


def test_the_training_ends_normally_without_a_server(tmp_path: Path) -> None:
    assert run_training(tmp_path, ROLLOUTDECK_URL="http://127.0.0.1:9").done.stdout.splitlines()[-1] == "trained"


def test_step_wise_trajectories_have_turns(tmp_path: Path) -> None:
    rows = run_training(tmp_path, "steps").rows("train", 1)
    assert [row["turn"] for row in rows] == [0] * 4 and len({row["trajectory"] for row in rows}) == 4


def test_skyrls_start_script_runs_the_experiment_of_ours_in_ray(tmp_path: Path) -> None:
    stderr = run_training(tmp_path, "start", may_fail="yes").done.stderr
    assert "Unable to find '/no/such.jsonl'" in stderr and "run_experiment" in stderr
