"""The replay of TRL without TRL and transformers: several ranks, several generations per step, and failures. With the
real trainers: `tests/trainers/trl/`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import download
from rolloutdeck.replay.folder import PULL_MANIFEST
from rolloutdeck.replay.plan import parse_plan
from rolloutdeck.trainers.common import patching, plan_request
from tests.rolloutdeck.support.fake_server import Receiver
from tests.rolloutdeck.support.plans import PlanServer

pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import (  # it needs torch
    IDS,
    PINNED,
    PROMPTS,
    Trainer,
    attach_callback,
    end_training,
    list_completions,
)


def build_generation(prompts: list[str] | None = None) -> bytes:
    rows = [
        {"prompt": prompt, "prompt_ids": [5], "completion_ids": ids, "logprobs": [-0.5] * 3}
        for prompt, ids in zip(prompts or PROMPTS, PINNED, strict=True)
    ]
    return json.dumps({"format": "trl-rollout", "step": 1, "rows": rows}).encode()


@pytest.mark.parametrize("source", ["plan", "folder"])
def test_a_step_is_generated_if_its_replay_raises_an_error(
    trl: SimpleNamespace,
    replay_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str,
) -> None:
    function = trl.replaying(folder=replay_folder) if source == "folder" else trl.replaying()
    trainer = Trainer(rollout_func=function)
    attach_callback(trl, trainer)
    monkeypatch.setattr(function, "_next_call", None)
    assert not is_step_replayed(trainer, 2)
    assert "lost something in replay._try_replay" in caplog.text


def is_step_replayed(trainer: Trainer, step: int, *, training: bool = True) -> bool:
    """Runs a step; returns whether it had the pinned rows."""
    before = trainer.generated
    trainer.step(at=step - 1, training=training)
    return trainer.generated == before


def start_server(content: bytes, monkeypatch: pytest.MonkeyPatch, flagged: int = 0) -> PlanServer:
    server = PlanServer(content, 2, "rollout-0.json", flagged)
    monkeypatch.setenv("ROLLOUTDECK_URL", server.url)
    return server


def test_a_planned_step_is_replayed_and_reported_and_others_and_evals_are_generated(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(build_generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    callback = attach_callback(trl, trainer)
    trainer.num_generations_eval = 4
    assert [is_step_replayed(trainer, step) for step in (1, 2)] == [False, True]
    assert trainer.batch == {"prompt_ids": [[5]] * 4, "completion_ids": PINNED, "logprobs": [[-0.5] * 3] * 4}
    assert not is_step_replayed(trainer, 3) and trainer.answers == 2
    assert not is_step_replayed(trainer, 2, training=False) and trainer.answers == 4
    end_training(callback)
    server.down()
    assert [ids for _, ids in list_completions(server)] == [IDS, PINNED, IDS]
    assert [(body["step"], body["outcome"], body["rows"]) for body in server.posted("/replays/")] == [(2, "hit", 4)]


def test_a_server_that_restarts_at_the_start_does_not_turn_the_replay_off(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(build_generation(), monkeypatch)
    server.failures = 2
    trainer = Trainer(rollout_func=trl.replaying())
    callback = attach_callback(trl, trainer)
    assert not is_step_replayed(trainer, 2)
    assert not is_step_replayed(trainer, 2) and server.failures == 1  # the plan is not requested twice within a minute
    monkeypatch.setattr(plan_request, "PAUSE_SECONDS", 0.0)
    trainer.state = SimpleNamespace(global_step=0)  # another training requests the plan immediately
    assert [is_step_replayed(trainer, step) for step in (1, 2)] == [False, True]
    end_training(callback)
    server.down()


def test_a_plan_that_arrives_within_a_step_begins_with_the_next_step(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is replayed completely or not at all."""
    server = start_server(build_generation(), monkeypatch)
    server.failures = 1
    monkeypatch.setattr(plan_request, "PAUSE_SECONDS", 0.0)
    trainer = Trainer(rollout_func=trl.replaying())
    callback = attach_callback(trl, trainer)
    assert [is_step_replayed(trainer, step) for step in (2, 2, 3, 2)] == [False, False, False, True]
    end_training(callback)
    server.down()


def test_a_step_that_is_only_partly_replayed_is_refused(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each generation of a step has a file of its own. After the first one that does not fit, all are generated."""
    server = start_server(build_generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    callback = attach_callback(trl, trainer)
    assert [is_step_replayed(trainer, 2) for _ in range(3)] == [True, False, False]
    end_training(callback)
    server.down()
    reason = "4 rows of the step were replayed, the others are not: the pin has no rollout-1.json"
    outcomes = [(body["outcome"], body["rows"], body["reason"]) for body in server.posted("/replays/")]
    assert outcomes == [("hit", 4, ""), ("refused", None, reason)]
    assert caplog.text.count("Step 2 is not replayed") == 1


def test_the_run_has_the_outcomes_of_a_replayed_keep_folder(
    trl: SimpleNamespace, replay_folder: Path, connected_receiver: Receiver
) -> None:
    (replay_folder / PULL_MANIFEST).unlink()
    (replay_folder / "step_000002/rollout-1.json").write_bytes(build_generation())
    trainer = Trainer(rollout_func=trl.replaying(folder=replay_folder))
    callback = attach_callback(trl, trainer)
    assert [is_step_replayed(trainer, 2), is_step_replayed(trainer, 2), is_step_replayed(trainer, 3)] == [
        True,
        True,
        True,
    ]
    trainer.state = SimpleNamespace(global_step=2)
    assert is_step_replayed(trainer, 3)  # the first generation of this step in another training
    end_training(callback)
    outcomes = [
        (body["step"], body["outcome"], body["rows"], body["pin"]) for body in connected_receiver.posted("/replays/")
    ]
    assert outcomes == [(2, "hit", 4, None), (2, "hit", 8, None), (3, "hit", 4, None), (3, "hit", 4, None)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (build_generation(["?", *PROMPTS[1:]]), "the prompts of 1 of 4 rows are not those that were answered"),
        (
            json.dumps({**json.loads(build_generation()), "rows": json.loads(build_generation())["rows"][:3]}).encode(),
            "rows: 3 pinned, 4",
        ),
        (b"{}", "is not a generation of TRL that Rolloutdeck stored"),
    ],
)
def test_a_step_that_does_not_fit_is_generated_with_the_reason(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    server = start_server(content, monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    attach_callback(trl, trainer)
    assert not is_step_replayed(trainer, 2) and reason in caplog.text
    server.down()


@pytest.mark.parametrize(
    ("options", "has_logprobs", "is_replayed"),
    [
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, False, False),
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, True, True),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, False, True),
        ({"use_vllm": False, "vllm_importance_sampling_correction": True}, False, True),
    ],
)
def test_a_pin_without_the_logprobs_that_the_run_needs_is_generated(
    trl: SimpleNamespace,
    replay_folder: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, bool],
    has_logprobs: bool,
    is_replayed: bool,
) -> None:
    (replay_folder / PULL_MANIFEST).unlink()
    if not has_logprobs:
        document = json.loads(build_generation())
        rows = [{key: value for key, value in row.items() if key != "logprobs"} for row in document["rows"]]
        (replay_folder / "step_000002/rollout-0.json").write_text(json.dumps({**document, "rows": rows}))
    trainer = Trainer(rollout_func=trl.replaying(folder=replay_folder), **options)
    assert is_step_replayed(trainer, 2) == is_replayed
    reason = "its rows have no logprobs, which vllm_importance_sampling_correction of this run needs"
    assert (reason in caplog.text) != is_replayed


def test_a_step_with_a_flagged_row_is_not_replayed(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(build_generation(), monkeypatch, flagged=1)
    trainer = Trainer(rollout_func=trl.replaying())
    attach_callback(trl, trainer)
    assert not is_step_replayed(trainer, 2)
    assert "a step of TRL is replayed whole or not at all" in caplog.text
    server.down()


class RegeneratingPlan(PlanServer):
    """A plan that generates steps with selected samples again, and stops if a pin can't be replayed."""

    def plan(self) -> dict[str, Any]:
        plan: dict[str, Any] = super().plan()
        (entry,) = plan["entries"]
        selected = {**entry, "selected": {"action": "regenerate"}}
        return {**plan, "on_selected": "regenerate", "on_mismatch": "stop", "entries": [selected]}


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2)])
def test_a_plan_that_generates_selected_steps_again_does_not_stop_the_run(
    trl: SimpleNamespace, second_process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, rank: int, world: int
) -> None:
    server = RegeneratingPlan(
        build_generation_of_two_processes() if world == 2 else build_generation(), 2, "rollout-0.json", flagged=1
    )
    monkeypatch.setenv("ROLLOUTDECK_URL", server.url)
    second_process.first = parse_plan(server.plan()) if rank else None
    second_process.objections = [None]
    trainer = Trainer(rollout_func=trl.replaying(), rank=rank, world=world)
    callback = attach_callback(trl, trainer)
    assert not is_step_replayed(trainer, 2)
    end_training(callback)
    server.down()
    events = [(body["outcome"], body["selected_action"]) for body in server.posted("/replays/")]
    assert events == ([] if rank else [("miss", "regenerate")])


def build_generation_of_two_processes() -> bytes:
    """A generation of two processes, with other rows for the second one."""
    rows: list[dict[str, Any]] = json.loads(build_generation())["rows"]
    rows += [{**row, "completion_ids": [3] * 3} for row in rows]
    return json.dumps({"format": "trl-rollout", "rows": rows}).encode()


@pytest.mark.parametrize("reason", ["", "the other process has another folder"])
def test_several_processes_replay_a_step_all_or_none(
    trl: SimpleNamespace, second_process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    server = start_server(build_generation_of_two_processes(), monkeypatch)
    second_process.objections = [(NotReplayableError, reason)] if reason else [None]
    trainer = Trainer(rollout_func=trl.replaying(), world=2)
    callback = attach_callback(trl, trainer)
    assert [is_step_replayed(trainer, step) for step in (1, 2)] == [False, not reason]
    assert second_process.asked == 1  # of the step that the plan has
    end_training(callback)
    server.down()
    matches = [(body["outcome"], body["rows"], body["reason"]) for body in server.posted("/replays/")]
    assert matches == [("refused", None, reason) if reason else ("hit", 8, "")]


def test_the_second_process_replays_its_own_rows_by_the_plan_of_the_first_and_reports_nothing(
    trl: SimpleNamespace,
    second_process: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_server(build_generation_of_two_processes(), monkeypatch)
    second_process.first = parse_plan(server.plan())
    trainer = Trainer(rollout_func=trl.replaying(), rank=1, world=2)
    callback = attach_callback(trl, trainer)
    assert is_step_replayed(trainer, 2)
    assert trainer.batch["completion_ids"] == [[3] * 3] * 4
    end_training(callback)
    server.down()
    assert not [path for path, _ in server.posts if path.endswith(("/replays/", "/replay-plan/"))]
    assert "Nothing is replayed" not in caplog.text


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_the_first_process_is_raised_in_all_of_them(second_process: SimpleNamespace, rank: int) -> None:
    from rolloutdeck.trainers.trl.plugin import processes

    def fail() -> None:
        raise OSError("Stale file handle")

    second_process.first = processes.SharedError(OSError, "Stale file handle") if rank else None
    with pytest.raises(OSError, match="Stale file handle"):
        processes.broadcast_from_main(Trainer(rank=rank, world=2), fail)


@pytest.mark.parametrize("objections", [[None], [(NotReplayableError, "another file")]])
def test_several_processes_replay_a_folder_all_or_none_by_the_steps_that_the_first_one_sees(
    trl: SimpleNamespace,
    second_process: SimpleNamespace,
    replay_folder: Path,
    caplog: pytest.LogCaptureFixture,
    objections: list[Any],
) -> None:
    (replay_folder / PULL_MANIFEST).unlink()
    (replay_folder / "step_000002/rollout-0.json").write_bytes(build_generation_of_two_processes())
    second_process.first, second_process.objections = {"step_000001", "step_000002"}, objections
    trainer = Trainer(rollout_func=trl.replaying(folder=replay_folder), rank=1, world=2)
    done = [(is_step_replayed(trainer, step), second_process.asked) for step in (1, 2, 3)]
    assert done == [(False, 1), (objections == [None], 2), (False, 2)]
    assert objections != [None] or trainer.batch["completion_ids"] != PINNED


def test_a_step_is_generated_if_the_server_is_killed_after_the_plan_was_requested(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(build_generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    attach_callback(trl, trainer)
    assert not is_step_replayed(trainer, 1)
    server.down()
    assert not is_step_replayed(trainer, 2) and "Step 2 is not replayed (miss)" in caplog.text


def test_without_a_callback_no_plan_is_requested_and_that_is_logged_once(
    trl: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(rollout_func=trl.replaying())
    assert not is_step_replayed(trainer, 1) and not is_step_replayed(trainer, 2)
    assert caplog.text.count("Nothing is replayed: the trainer has no RolloutdeckCallback.") == 1


@pytest.fixture
def replay_folder(tmp_path: Path) -> Path:
    """A folder with step 2 as `pull` writes it, and step 3, which is not in the manifest."""
    for step in (2, 3):
        (tmp_path / f"into/step_00000{step}").mkdir(parents=True)
        (tmp_path / f"into/step_00000{step}/rollout-0.json").write_bytes(build_generation())
    files = {"step_000002/rollout-0.json": download.hash_file(tmp_path / "into/step_000002/rollout-0.json")}
    values = {"rolloutdeck": "pull", "complete": True, "plan": "default@1", "files": files, "pins": {"2": 5, "3": 6}}
    (tmp_path / "into" / PULL_MANIFEST).write_text(json.dumps(values))
    return tmp_path / "into"


def test_only_files_that_pull_wrote_are_replayed_from_a_folder_and_the_outcomes_are_reported(
    trl: SimpleNamespace, connected_receiver: Receiver, replay_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(rollout_func=trl.replaying(folder=replay_folder))
    callback = attach_callback(trl, trainer)
    assert [is_step_replayed(trainer, step) for step in (1, 2, 3)] == [False, True, False]
    assert not is_step_replayed(trainer, 2, training=False)
    assert "Step 3 is not replayed: rollout-0.json is not the file that `pull` wrote" in caplog.text
    end_training(callback)
    values = [(body["step"], body["outcome"], body["pin"]) for body in connected_receiver.posted("/replays/")]
    assert values == [(2, "hit", 5), (3, "refused", 6)]


def test_only_a_folder_whose_plan_says_stop_raises_an_error(trl: SimpleNamespace, replay_folder: Path) -> None:
    result = json.loads((replay_folder / PULL_MANIFEST).read_text())
    (replay_folder / PULL_MANIFEST).write_text(json.dumps({**result, "on_mismatch": "stop"}))
    trainer = Trainer(rollout_func=trl.replaying(folder=replay_folder))
    assert is_step_replayed(trainer, 2)
    with pytest.raises(
        patching.ReplayStoppedError, match=r"default@1 says to stop. Step 3: rollout-0.json is not the file"
    ):
        is_step_replayed(trainer, 3)


def test_steps_that_the_callback_kept_are_replayed_without_a_manifest(
    trl: SimpleNamespace, replay_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (replay_folder / PULL_MANIFEST).unlink()
    caplog.set_level(logging.INFO)
    trainer = Trainer(rollout_func=trl.replaying(folder=replay_folder))
    assert [is_step_replayed(trainer, step) for step in (1, 2, 3)] == [False, True, True]
    assert "Step 3 is replayed from" in caplog.text


def test_an_incomplete_folder_or_one_without_steps_is_refused_before_the_training(
    trl: SimpleNamespace, replay_folder: Path, tmp_path: Path
) -> None:
    result = json.loads((replay_folder / PULL_MANIFEST).read_text())
    (replay_folder / PULL_MANIFEST).write_text(json.dumps({**result, "complete": False}))
    with pytest.raises(ValueError, match="is not complete: a `rolloutdeck pull` into it did not finish; run it again"):
        trl.replaying(folder=replay_folder)
    with pytest.raises(ValueError, match="has no step of TRL"):
        trl.replaying(folder=tmp_path)
