"""`record` with NeMo-RL's own `Logger` and `BatchedDataDict`, next to a receiver. NEMO_RL is a checkout of NeMo-RL;
TRAINERS_PYTHON needs what its logger imports (torch, ray, matplotlib, prometheus_client, rich, tensorboard)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollouts.formats import nemo_rl as nemo_format
from rollouts.formats.base import DumpContext
from rollouts.formats.native import build_native_record
from rollouts.samples import Record
from tests.trainers.verl.process import ROOT, Training, train

pytestmark = pytest.mark.trainers


def run_training(folder: Path, *words: str, **environ: str) -> Training:
    checkout = os.environ.get("NEMO_RL")
    if not checkout:
        pytest.skip("needs NEMO_RL, a checkout of NeMo-RL (github.com/NVIDIA-NeMo/RL)")
    path = os.pathsep.join([checkout, str(ROOT)])
    return train(
        "../../nemo_rl/inside/training.py", *words, folder=folder, PYTHONPATH=path, ROLLOUTDECK_TOKENS="all", **environ
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run_training(tmp_path_factory.mktemp("nemo"))


@pytest.mark.parametrize(("split", "name"), [("train", "train"), ("eval", "val")])
@pytest.mark.parametrize("step", [1, 2])
def test_the_rows_are_those_of_the_file_that_nemo_writes(training: Training, split: str, name: str, step: int) -> None:
    path = training.folder / "logs" / f"{name}_data_step{step}.jsonl"
    with path.open("rb") as file:
        items = list(nemo_format.read(file, DumpContext(filename=path.name)))
    expected = [item for item in items if isinstance(item, Record)]
    records = [build_native_record(row) for row in training.rows(split, step)]
    for record in (*records, *expected):
        record.messages = None
    assert records == expected and len(expected) == (4 if split == "train" else 1)


def test_the_metrics_are_those_that_nemo_logs(training: Training) -> None:
    assert training.values(2) == {
        "train/loss": 1.0, "train/reward": 0.5, "timing/train/total_step_time": 1.5, "validation/accuracy": 1.0,
    }  # fmt: skip


def test_the_run_has_nemos_names_and_ends_with_the_logger(training: Training) -> None:
    run = next(body for path, body in training.receiver.posts if path.endswith("/runs/") and "config" in body)
    assert (run["project"], run["name"], run["framework"]) == ("math", "nemo-grpo", "nemo-rl")
    assert training.outcomes() == ["finished"]


def test_the_training_ends_normally_without_a_server_and_with_unreadable_rows(tmp_path: Path) -> None:
    result = run_training(tmp_path, "broken", ROLLOUTDECK_URL="http://127.0.0.1:9")
    assert result.done.stdout.splitlines()[-1] == "trained"
    assert (tmp_path / "logs" / "train_data_step2.jsonl").is_file()
