"""Steps that the callback of TRL keeps in a folder, to be pinned: of one process and of several. TRL is a fake."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import Receiver, wait_until

pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import (  # it needs torch
    IDS,
    Trainer,
    attach_callback,
    end_training,
    list_completions,
)


def test_a_step_is_kept_once_all_its_generations_are_and_an_eval_never(
    trl: SimpleNamespace, connected_receiver: Receiver, tmp_path: Path
) -> None:
    trainer = Trainer()
    callback = attach_callback(trl, trainer, keep=tmp_path / "kept")
    trainer.step(at=0), trainer.step(at=0), trainer.step(training=False, at=0), trainer.step(at=1)
    end_training(callback)
    stored = sorted(path.relative_to(tmp_path / "kept").as_posix() for path in tmp_path.glob("kept/*/*"))
    assert stored == ["step_000001/rollout-0.json", "step_000001/rollout-1.json", "step_000002/rollout-0.json"]
    values = [body for path, body in connected_receiver.posts if path.endswith("/artifacts/")]
    assert [(body["step"], list(body["files"]), body["facts"]["rows"]) for body in values] == [
        (1, ["rollout-0.json", "rollout-1.json"], 8)
    ]


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), ("a",), [3], {1: 2}])
def test_a_step_whose_rollout_func_returns_values_that_are_not_json_is_counted_and_not_kept(
    trl: SimpleNamespace, connected_receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    values = {"prompt_ids": [[5]] * 4, "completion_ids": IDS, "logprobs": None, "points": value}
    trainer = Trainer(rollout_func=lambda prompts, trainer: values)
    callback = attach_callback(trl, trainer, keep=tmp_path / "kept")
    trainer.step(at=0)
    end_training(callback)
    assert "steps that could be pinned: the rollout_func returned" in caplog.text
    assert callback.run._threads.spool.dropped == {"TRL callback: steps that could be pinned": 1}
    assert not list(tmp_path.glob("kept/*/rollout-*.json")) and list_completions(connected_receiver) == [(1, IDS)]


def test_a_step_that_cannot_be_kept_is_counted_and_its_rows_are_recorded(
    trl: SimpleNamespace, connected_receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("a file, not a folder")
    trainer = Trainer()
    callback = attach_callback(trl, trainer, keep=tmp_path / "kept")
    trainer.step(at=0), trainer.step(at=1)
    end_training(callback)
    assert list_completions(connected_receiver) == [(1, IDS), (2, IDS)]
    assert callback.run._threads.spool.dropped == {"TRL callback: steps that could be pinned": 2}


@pytest.fixture
def two_processes(trl: SimpleNamespace, tmp_path: Path) -> tuple[list[Trainer], list[Any]]:
    """Two processes of one launch that keep their steps in one folder."""
    trainers = [Trainer(rank=rank, world=2) for rank in range(2)]
    return trainers, [attach_callback(trl, trainer, keep=tmp_path / "kept") for trainer in trainers]


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_the_first_of_several_processes_merges_all_kept_rows_into_one_file_and_reports_it_once(
    two_processes: tuple[list[Trainer], list[Any]],
    connected_receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    launcher: str,
) -> None:
    """Not all launchers give the processes a common id. Parts of an earlier launch do not count."""
    if launcher == "mpirun":
        for rank, callback in enumerate(two_processes[1]):
            monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", f"of-rank-{rank}")
            callback.name = f"rank{rank}"
            callback.open_session(two_processes[0][rank].args)
    (tmp_path / "kept/step_000001").mkdir(parents=True)
    (tmp_path / "kept/step_000001/.rollout-0.json.rank1").write_text('{"rows": [\n{}\n]}\n')
    for callback in two_processes[1]:
        callback.on_train_begin(None, None, None)
    two_processes[0][0].step(at=0)
    wait_until((tmp_path / "kept/step_000001/.rollout-0.json.rank0").exists)
    two_processes[0][1].step(at=0)
    two_processes[1][1].on_train_end(None, None, None)
    end_training(two_processes[1][0])
    assert "not all processes" not in caplog.text
    (file,) = (path for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert file.name == "rollout-0.json"
    assert [row["completion_ids"] for row in json.loads(file.read_bytes())["rows"]] == IDS * 2
    values = [body for path, body in connected_receiver.posts if path.endswith("/artifacts/")]
    assert [(body["step"], list(body["files"]), body["facts"]["rows"]) for body in values] == [
        (1, ["rollout-0.json"], 8)
    ]


def test_a_step_whose_other_processes_see_another_folder_is_counted_and_not_reported(
    two_processes: tuple[list[Trainer], list[Any]],
    connected_receiver: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = two_processes[1]
    first._part_seconds, second.keep = 0.1, tmp_path / "elsewhere"
    for trainer in two_processes[0]:
        trainer.step(at=0)
    two_processes[1][1].on_train_end(None, None, None)
    end_training(two_processes[1][0])
    assert f"steps of which not all processes wrote their rows to {tmp_path}" in caplog.text
    reason = "TRL callback: steps of which not all processes wrote their rows"
    assert first.run._threads.spool.dropped == {reason: 1}
    assert not [path for path, _ in connected_receiver.posts if path.endswith("/artifacts/")]
    assert len(list_completions(connected_receiver)) == 2
