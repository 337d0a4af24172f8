"""The callback and the replay of TRL where neither TRL nor transformers is: what several ranks, several generations a
step, and what goes wrong make of it. In real trainers: `tests/trainers/test_trl*.py`."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rolloutdeck import fetch, opening, replay
from rolloutdeck.replay_folder import MANIFEST
from rolloutdeck.trainers import hooks, session
from rolloutdeck.trainers.trl_plugin import taking
from tests.rolloutdeck.planning import Planning
from tests.rolloutdeck.receiver import Receiver, until

pytest.importorskip("torch")

from tests.rolloutdeck.trls import IDS, PROMPTS, Making, Trainer  # it needs torch

NEEDS = tuple(f"rolloutdeck.trainers.trl_plugin.{name}" for name in ("callback", "replaying", "laid", "replay"))
# Completions that the stand-in does not generate, row by row.
PINNED = [[9, place, 2] for place in range(4)]


def generation(prompts: list[str] | None = None) -> bytes:
    rows = [
        {"prompt": prompt, "prompt_ids": [5], "completion_ids": ids, "logprobs": [-0.5] * 3}
        for prompt, ids in zip(prompts or PROMPTS, PINNED, strict=True)
    ]
    return json.dumps({"format": "trl-rollout", "step": 1, "rows": rows}).encode()


@pytest.fixture
def trl(at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Our two names, imported with a stand-in for the one name of transformers that they need."""
    transformers = ModuleType("transformers")
    vars(transformers)["TrainerCallback"] = object
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setattr(hooks, "voice", hooks.Voice())
    monkeypatch.setattr(fetch, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(session, "MOST_WAITING", 100)  # these trainers take no time between two steps
    monkeypatch.setenv("ROLLOUTDECK_TOKENS", "all")
    for name in NEEDS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    callback, _, _, ours = map(importlib.import_module, NEEDS)
    yield SimpleNamespace(Callback=callback.RolloutdeckCallback, replaying=ours.replay_rollout_func, module=callback)
    for run in list(opening._runs):
        run.finish(timeout=0)
    opening._runs.clear()
    for name in NEEDS:
        sys.modules.pop(name, None)


def joined(trl: SimpleNamespace, trainer: Trainer, **told: Any) -> Any:
    callback = trl.Callback("math", **told)
    trainer.add_callback(callback)
    return callback


def ended(callback: Any) -> None:
    """All that was told has arrived."""
    callback.on_train_end(None, None, None)
    callback.run.finish(timeout=60)


def completions(deck: Receiver, split: str = "train") -> list[tuple[int, list[list[int]]]]:
    """(step, the ids of each row) of each delivery."""
    found = [(int(query["step"]), body) for _, query, body in deck.dumps if query["split"] == split]
    return [(step, [json.loads(line)["response_ids"] for line in body.splitlines()]) for step, body in found]


def test_only_the_first_rank_logs_metrics_and_each_its_rows(
    trl: SimpleNamespace, at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer = Trainer(rank=1, world=2)
    callback = joined(trl, trainer)
    trainer.step(at=0)
    trainer.log({"loss": 1.0}, first=False)
    ended(callback)
    assert at_receiver.points() == [] and completions(at_receiver) == [(1, IDS)]
    assert {query["producer"] for _, query, _ in at_receiver.dumps} == {"rank1"}


def test_metrics_are_named_as_transformers_integrations_name_them(trl: SimpleNamespace, at_receiver: Receiver) -> None:
    trainer = Trainer()
    callback = joined(trl, trainer)
    trainer.log({"loss": 1.0, "eval_reward": 0.5}), trainer.log({})
    ended(callback)
    (point,) = at_receiver.points()
    assert point["values"] == {"train/loss": 1.0, "eval/reward": 0.5}
    (opened,) = [body for path, body in at_receiver.posts if path.endswith("/runs/") and "config" in body]
    assert opened["config"]["num_generations"] == 2 and opened["framework"] == "trl"
    assert at_receiver.abouts[0][:2] == ("math", "tiny")


def test_the_end_of_a_training_waits_for_the_rows_that_are_still_made(
    trl: SimpleNamespace, at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, at_work = Trainer(), trl.module.Held.rows
    slowly = lambda held, selection: until(lambda: held.rewards is not None, 1) and at_work(held, selection)  # noqa: E731
    monkeypatch.setattr(trl.module.Held, "rows", slowly)
    callback = joined(trl, trainer)
    for step in range(3):
        trainer.step(at=step)
    callback.on_train_end(None, None, None)
    assert callback.session._jobs.unfinished_tasks == 0
    ended(callback)
    assert [step for step, _ in completions(at_receiver)] == [1, 2, 3]


def test_a_step_is_kept_once_all_its_generations_are_and_an_eval_never(
    trl: SimpleNamespace, at_receiver: Receiver, tmp_path: Path
) -> None:
    trainer = Trainer()
    callback = joined(trl, trainer, keep=tmp_path / "kept")
    trainer.step(at=0), trainer.step(at=0), trainer.step(training=False, at=0), trainer.step(at=1)
    ended(callback)
    kept = sorted(path.relative_to(tmp_path / "kept").as_posix() for path in tmp_path.glob("kept/*/*"))
    assert kept == ["step_000001/rollout-0.json", "step_000001/rollout-1.json", "step_000002/rollout-0.json"]
    told = [body for path, body in at_receiver.posts if path.endswith("/artifacts/")]
    assert [(body["step"], list(body["files"]), body["facts"]["rows"]) for body in told] == [
        (1, ["rollout-0.json", "rollout-1.json"], 8)
    ]


@pytest.mark.parametrize("odd", [{1, 2}, float("nan"), ("a",), [3], {1: 2}])
def test_a_step_whose_rollout_func_gave_what_a_file_does_not_hold_is_counted_and_not_kept(
    trl: SimpleNamespace, at_receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    told = {"prompt_ids": [[5]] * 4, "completion_ids": IDS, "logprobs": None, "points": odd}
    trainer = Trainer(rollout_func=lambda prompts, trainer: told)
    callback = joined(trl, trainer, keep=tmp_path / "kept")
    trainer.step(at=0)
    ended(callback)
    assert "steps that could be pinned: the rollout_func gave" in caplog.text
    assert not list(tmp_path.glob("kept/*/rollout-*.json")) and completions(at_receiver) == [(1, IDS)]


@pytest.fixture
def two(trl: SimpleNamespace, tmp_path: Path) -> tuple[list[Trainer], list[Any]]:
    """Two processes of one launch that keep their steps in one folder."""
    trainers = [Trainer(rank=rank, world=2) for rank in range(2)]
    return trainers, [joined(trl, trainer, keep=tmp_path / "kept") for trainer in trainers]


def test_of_several_processes_the_first_makes_one_file_of_what_all_kept_and_tells_of_it_once(
    two: tuple[list[Trainer], list[Any]], at_receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept/step_000001").mkdir(parents=True)
    before = '{"attempt": "of an earlier launch", "rows": [\n{}\n]}\n'
    (tmp_path / "kept/step_000001/.rollout-0.json.rank1").write_text(before)
    two[0][0].step(at=0)
    until((tmp_path / "kept/step_000001/.rollout-0.json.rank0").exists)
    two[0][1].step(at=0)
    two[1][1].on_train_end(None, None, None)
    ended(two[1][0])
    assert "not all processes" not in caplog.text
    (file,) = (path for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert file.name == "rollout-0.json"
    assert [row["completion_ids"] for row in json.loads(file.read_bytes())["rows"]] == IDS * 2
    told = [body for path, body in at_receiver.posts if path.endswith("/artifacts/")]
    assert [(body["step"], list(body["files"]), body["facts"]["rows"]) for body in told] == [(1, ["rollout-0.json"], 8)]


def test_a_step_whose_other_processes_see_another_folder_is_counted_and_not_told(
    two: tuple[list[Trainer], list[Any]], at_receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two[1]
    first._patience, second.keep = 0.1, tmp_path / "elsewhere"
    for trainer in two[0]:
        trainer.step(at=0)
    two[1][1].on_train_end(None, None, None)
    ended(two[1][0])
    assert "steps of which not all processes wrote their rows to" in caplog.text
    assert not [path for path, _ in at_receiver.posts if path.endswith("/artifacts/")]
    assert len(completions(at_receiver)) == 2


@pytest.mark.parametrize("hook", ["on_init_end", "on_train_begin", "on_log", "on_train_end"])
def test_a_mistake_in_a_hook_of_the_callback_does_not_reach_the_trainer(
    trl: SimpleNamespace, caplog: pytest.LogCaptureFixture, hook: str
) -> None:
    callback = trl.Callback("math")
    callback.session = SimpleNamespace()  # it has nothing of what is asked of it
    callback._join = None
    told = {"logs": {"loss": 1.0}} if hook == "on_log" else {}
    getattr(callback, hook)(None, SimpleNamespace(is_world_process_zero=True, global_step=1), None, **told)
    assert f"lost something in callback.{hook}" in caplog.text


def test_a_mistake_in_what_is_taken_of_a_generation_does_not_reach_the_trainer(
    trl: SimpleNamespace, at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer()
    callback = joined(trl, trainer)
    monkeypatch.setattr(taking, "ends", None)
    trainer.step(at=0)
    assert "lost something in taking._take" in caplog.text
    assert callback.run is None and not at_receiver.dumps


@pytest.mark.parametrize("way", ["replay", "laid"])
def test_a_mistake_in_a_replay_costs_a_generation(
    trl: SimpleNamespace, laid: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    function = trl.replaying(folder=laid) if way == "laid" else trl.replaying()
    trainer = Trainer(rollout_func=function)
    joined(trl, trainer)
    monkeypatch.setattr(function, "calls", None)
    assert not replayed(trainer, 2)
    assert f"lost something in {way}._replayed" in caplog.text


def replayed(trainer: Trainer, step: int, *, training: bool = True) -> bool:
    """Whether the step that is trained next had the pinned rows."""
    before = trainer.generated
    trainer.step(at=step - 1, training=training)
    return trainer.generated == before


def planning(content: bytes, monkeypatch: pytest.MonkeyPatch, flagged: int = 0) -> Planning:
    deck = Planning(content, 2, "rollout-0.json", flagged)
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    return deck


def test_a_planned_step_is_replayed_and_told_and_others_and_evals_are_generated(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    deck = planning(generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    callback = joined(trl, trainer)
    trainer.num_generations_eval = 4
    assert [replayed(trainer, step) for step in (1, 2)] == [False, True]
    assert trainer.batch == {"prompt_ids": [[5]] * 4, "completion_ids": PINNED, "logprobs": [[-0.5] * 3] * 4}
    assert not replayed(trainer, 3) and trainer.answers == 2
    assert not replayed(trainer, 2, training=False) and trainer.answers == 4
    ended(callback)
    deck.down()
    assert [ids for _, ids in completions(deck)] == [IDS, PINNED, IDS]
    assert [(body["step"], body["outcome"], body["rows"]) for body in deck.posted("/replays/")] == [(2, "hit", 4)]


def test_a_second_generation_of_a_step_has_a_file_of_its_own_or_is_generated(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deck = planning(generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    joined(trl, trainer)
    assert [replayed(trainer, 2), replayed(trainer, 2)] == [True, False]
    assert "the pin has no rollout-1.json" in caplog.text
    deck.down()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (generation(["?", *PROMPTS[1:]]), "the prompts of 1 of 4 rows are not those that were answered"),
        (
            json.dumps({**json.loads(generation()), "rows": json.loads(generation())["rows"][:3]}).encode(),
            "rows: 3 pinned, 4",
        ),
        (b"{}", "is no generation that Rolloutdeck kept of TRL"),
    ],
)
def test_what_does_not_fit_is_generated_with_the_reason(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes, why: str
) -> None:
    deck = planning(content, monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    joined(trl, trainer)
    assert not replayed(trainer, 2) and why in caplog.text
    deck.down()


def test_a_step_of_which_something_is_flagged_is_replayed_whole_or_not_at_all(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deck = planning(generation(), monkeypatch, flagged=1)
    trainer = Trainer(rollout_func=trl.replaying())
    joined(trl, trainer)
    assert not replayed(trainer, 2)
    assert "a step of TRL is replayed whole or not at all" in caplog.text
    deck.down()


def test_a_trainer_that_calls_tools_replays_nothing(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deck = planning(generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying(), tools=[len])
    joined(trl, trainer)
    assert not replayed(trainer, 2) and "the trainer has tools" in caplog.text
    deck.down()


def of_two() -> bytes:
    """A generation of two processes: the second one's rows are others."""
    rows: list[dict[str, Any]] = json.loads(generation())["rows"]
    rows += [{**row, "completion_ids": [3] * 3} for row in rows]
    return json.dumps({"format": "trl-rollout", "rows": rows}).encode()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a second process says: `first`, as the first one, and `objections` to a step."""
    told = SimpleNamespace(first=None, objections=[], asked=0)
    accelerate = ModuleType("accelerate.utils")

    def gathered(said: list[Any]) -> list[Any]:
        told.asked += 1
        return [*said, *told.objections]

    vars(accelerate)["broadcast_object_list"] = lambda said, from_process: [told.first or said[from_process]]
    vars(accelerate)["gather_object"] = gathered
    monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
    monkeypatch.setitem(sys.modules, "accelerate.utils", accelerate)
    return told


@pytest.mark.parametrize("reason", ["", "the other process has another folder"])
def test_several_processes_replay_a_step_all_or_none(
    trl: SimpleNamespace, others: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    deck = planning(of_two(), monkeypatch)
    others.objections = [(True, reason)] if reason else [None]
    trainer = Trainer(rollout_func=trl.replaying(), world=2)
    callback = joined(trl, trainer)
    assert [replayed(trainer, step) for step in (1, 2)] == [False, not reason]
    assert others.asked == 1  # of the step that the plan has
    ended(callback)
    deck.down()
    found = [(body["outcome"], body["rows"], body["reason"]) for body in deck.posted("/replays/")]
    assert found == [("refused", None, reason) if reason else ("hit", 8, "")]


def test_the_second_process_replays_its_own_rows_by_the_plan_of_the_first_and_tells_nothing(
    trl: SimpleNamespace, others: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deck = planning(of_two(), monkeypatch)
    others.first = replay.read(deck.plan())
    trainer = Trainer(rollout_func=trl.replaying(), rank=1, world=2)
    callback = joined(trl, trainer)
    assert replayed(trainer, 2)
    assert trainer.batch["completion_ids"] == [[3] * 3] * 4
    ended(callback)
    deck.down()
    assert not [path for path, _ in deck.posts if path.endswith(("/replays/", "/replay-plan/"))]
    assert "Nothing is replayed" not in caplog.text


@pytest.mark.parametrize("objections", [[None], [(True, "another file")]])
def test_several_processes_replay_a_folder_all_or_none_by_the_steps_that_the_first_one_sees(
    trl: SimpleNamespace, others: SimpleNamespace, laid: Path, caplog: pytest.LogCaptureFixture, objections: list[Any]
) -> None:
    (laid / MANIFEST).unlink()
    (laid / "step_000002/rollout-0.json").write_bytes(of_two())
    others.first, others.objections = {"step_000001", "step_000002"}, objections
    trainer = Trainer(rollout_func=trl.replaying(folder=laid), rank=1, world=2)
    done = [(replayed(trainer, step), others.asked) for step in (1, 2, 3)]
    assert done == [(False, 1), (objections == [None], 2), (False, 2)]
    assert objections != [None] or trainer.batch["completion_ids"] != PINNED


def test_a_server_that_is_killed_after_the_plan_was_asked_for_costs_a_generation(
    trl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deck = planning(generation(), monkeypatch)
    trainer = Trainer(rollout_func=trl.replaying())
    joined(trl, trainer)
    assert not replayed(trainer, 1)
    deck.down()
    assert not replayed(trainer, 2) and "Step 2 is not replayed (miss)" in caplog.text


def test_without_a_callback_a_plan_is_not_asked_for_and_that_is_said_once(
    trl: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(rollout_func=trl.replaying())
    assert not replayed(trainer, 1) and not replayed(trainer, 2)
    assert caplog.text.count("Nothing is replayed: the trainer has no RolloutdeckCallback.") == 1


@pytest.fixture
def laid(tmp_path: Path) -> Path:
    """What `pull` puts into a folder for step 2, and one that nobody told of for step 3."""
    for step in (2, 3):
        (tmp_path / f"into/step_00000{step}").mkdir(parents=True)
        (tmp_path / f"into/step_00000{step}/rollout-0.json").write_bytes(generation())
    files = {"step_000002/rollout-0.json": fetch.hash_of(tmp_path / "into/step_000002/rollout-0.json")}
    told = {"rolloutdeck": "pull", "complete": True, "plan": "default@1", "files": files, "pins": {"2": 5, "3": 6}}
    (tmp_path / "into" / MANIFEST).write_text(json.dumps(told))
    return tmp_path / "into"


def test_a_folder_is_replayed_where_pull_told_of_its_files_and_the_callbacks_run_hears_of_it(
    trl: SimpleNamespace, at_receiver: Receiver, laid: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(rollout_func=trl.replaying(folder=laid))
    callback = joined(trl, trainer)
    assert [replayed(trainer, step) for step in (1, 2, 3)] == [False, True, False]
    assert not replayed(trainer, 2, training=False)
    assert "Step 3 is not replayed: rollout-0.json is not the file that `pull` laid out" in caplog.text
    ended(callback)
    told = [(body["step"], body["outcome"], body["pin"]) for body in at_receiver.posted("/replays/")]
    assert told == [(2, "hit", 5), (3, "refused", 6)]


def test_a_folder_whose_plan_says_stop_is_the_only_thing_that_raises(trl: SimpleNamespace, laid: Path) -> None:
    told = json.loads((laid / MANIFEST).read_text())
    (laid / MANIFEST).write_text(json.dumps({**told, "on_mismatch": "stop"}))
    trainer = Trainer(rollout_func=trl.replaying(folder=laid))
    assert replayed(trainer, 2)
    with pytest.raises(hooks.Stop, match=r"default@1 says to stop. Step 3: rollout-0.json is not the file"):
        replayed(trainer, 3)


def test_what_the_callback_kept_is_replayed_by_its_folder_alone(
    trl: SimpleNamespace, laid: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (laid / MANIFEST).unlink()
    caplog.set_level(logging.INFO)
    trainer = Trainer(rollout_func=trl.replaying(folder=laid))
    assert [replayed(trainer, step) for step in (1, 2, 3)] == [False, True, True]
    assert "Step 3 is replayed from" in caplog.text


def test_a_folder_that_pull_did_not_finish_or_that_holds_no_steps_ends_before_the_training(
    trl: SimpleNamespace, laid: Path, tmp_path: Path
) -> None:
    told = json.loads((laid / MANIFEST).read_text())
    (laid / MANIFEST).write_text(json.dumps({**told, "complete": False}))
    with pytest.raises(ValueError, match="is not whole: a `rolloutdeck pull` into it did not end; repeat it"):
        trl.replaying(folder=laid)
    with pytest.raises(ValueError, match="holds no step of TRL"):
        trl.replaying(folder=tmp_path)


def test_the_first_rank_tells_how_long_a_train_step_generated(trl: SimpleNamespace, at_receiver: Receiver) -> None:
    for rank in (1, 0):
        trainer = Making(rank=rank, world=2)
        callback = joined(trl, trainer)
        trainer.step(at=4), trainer.step(training=False, at=5)
        ended(callback)
    (point,) = at_receiver.points()
    assert (point["step"], [*point["values"]]) == (5, ["timing_s/gen"]) and point["values"]["timing_s/gen"] > 0
