"""The callback of TRL without TRL and transformers: several ranks, several generations per step, and failures. With the
real trainers: `tests/trainers/trl/`."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.protocol import EARLIER_EQUAL_KEY
from rolloutdeck.trainers.trl.plugin import capture
from rolloutdeck.trainers.trl.plugin.rows import RULES_KEY
from tests.rolloutdeck.support.fake_server import Receiver, wait_until

pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import (  # it needs torch
    ARGS,
    IDS,
    GeneratingTrainer,
    Trainer,
    attach_callback,
    end_training,
    list_completions,
)


def test_only_the_first_rank_logs_metrics_and_each_its_rows(
    trl: SimpleNamespace, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer = Trainer(rank=1, world=2)
    callback = attach_callback(trl, trainer)
    trainer.step(at=0)
    trainer.log({"loss": 1.0}, first=False)
    end_training(callback)
    assert connected_receiver.points() == [] and list_completions(connected_receiver) == [(1, IDS)]
    assert {query["producer"] for _, query, _ in connected_receiver.dumps} == {"rank1"}


def test_equal_answers_of_two_generations_of_a_step_are_two_samples(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    trainer = Trainer()
    callback = attach_callback(trl, trainer)
    trainer.step(at=0), trainer.step(at=0), trainer.step(at=1)
    end_training(callback)
    earlier = [
        (int(query["step"]), [json.loads(line).get(EARLIER_EQUAL_KEY, 0) for line in body.splitlines()])
        for _, query, body in connected_receiver.dumps
    ]
    assert earlier == [(1, [0, 0, 0, 0]), (1, [1, 1, 1, 1]), (2, [0, 0, 0, 0])]


@pytest.mark.parametrize("selected", [{}, {RULES_KEY: "bad"}], ids=["no rule", "a rule"])
def test_a_data_set_column_called_guidance_is_not_taken_for_rules(
    trl: SimpleNamespace, connected_receiver: Receiver, selected: dict[str, str]
) -> None:
    trainer = Trainer(columns={"guidance": "gg", **selected})
    callback = attach_callback(trl, trainer)
    trainer.step(at=0)
    end_training(callback)
    row = json.loads(connected_receiver.dumps[0][2].splitlines()[0])
    assert (row.get("guidance"), row["dataset_guidance"]) == (selected.get(RULES_KEY), "gg")
    assert RULES_KEY not in row


@pytest.mark.parametrize("columns", [{}, {"data_source": "own"}])
def test_rows_of_several_evaluation_data_sets_name_their_data_set(
    trl: SimpleNamespace, connected_receiver: Receiver, columns: dict[str, str]
) -> None:
    trainer = Trainer(columns=columns)
    callback = attach_callback(trl, trainer)
    trainer.evaluate({"math": [], "code": []}), trainer.evaluate(), trainer.step(at=0)
    end_training(callback)
    rows = [json.loads(body.splitlines()[0]) for _, _, body in connected_receiver.dumps]
    names = [row.get("data_source") for row in rows]
    assert names == (["own"] * 4 if columns else ["math", "code", None, None])
    assert [row["group"] for row in rows] == ["0", "2", "4", "0"]


def test_reward_functions_of_one_name_are_all_recorded(trl: SimpleNamespace, connected_receiver: Receiver) -> None:
    trainer, torch = Trainer(reward_func_names=["judge", "judge"]), pytest.importorskip("torch")
    trainer._calculate_rewards = lambda *_args, **_more: torch.tensor([[1.0, 2.0]] * 4)
    callback = attach_callback(trl, trainer)
    trainer.step(at=0)
    end_training(callback)
    [(_path, _query, body)] = connected_receiver.dumps
    assert json.loads(body.splitlines()[0])["rewards"] == {"judge#1": 1.0, "judge": 2.0}


@pytest.mark.parametrize(
    "second_training",
    ["the same trainer", "another trainer", "a trainer that exists already", "another one with this callback"],
)
def test_each_training_of_a_process_has_a_run_of_its_own(
    trl: SimpleNamespace, connected_receiver: Receiver, second_training: str
) -> None:
    first, trainers = Trainer(), [Trainer()]
    callback = attach_callback(trl, first)
    if second_training == "the same trainer":
        following = first, callback
    elif second_training == "another one with this callback":
        following = trainers[0], callback
        trainers[0].add_callback(callback)
    else:
        following = trainers[0], attach_callback(trl, trainers[0])
    if second_training == "a trainer that exists already":
        following[1].open_session(trainers[0].args)  # as guidance does
    for trainer, its_callback, number in ((first, callback, 1), (*following, 2)):
        its_callback.on_train_begin(trainer.args, trainer.state, None)
        trainer.step(training=False, at=0), trainer.step(at=0), trainer.step(at=0)
        trainer.log({"reward": float(number)})
        its_callback.on_train_end(trainer.args, trainer.state, None)
    end_training(following[1])
    runs = [uid for uid, _, _ in connected_receiver.dumps]
    assert len(set(runs[:3])) == len(set(runs[3:])) == 1 and runs[0] != runs[3]
    assert [(int(query["step"]), query["split"]) for _, query, _ in connected_receiver.dumps] == [
        (0, "eval"), (1, "train"), (1, "train"),
    ] * 2  # fmt: skip
    outcomes = [body["outcome"] for path, body in connected_receiver.posts if path.endswith("/finish/")]
    assert outcomes == ["finished", "finished"]


def test_a_training_that_was_interrupted_has_failed_when_the_next_begins(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    trainer = Trainer()
    callback = attach_callback(trl, trainer)
    for _ in range(2):
        callback.on_train_begin(trainer.args, trainer.state, None)
        trainer.step(at=0)
    end_training(callback)
    outcomes = [body["outcome"] for path, body in connected_receiver.posts if path.endswith("/finish/")]
    assert outcomes == ["failed", "finished"]


def build_named_trainer(name: str, **options: Any) -> Trainer:
    values = {**ARGS, "run_name": name}
    return Trainer(args=SimpleNamespace(**values, to_dict=lambda: dict(values)), **options)


def list_deliveries(receiver: Receiver) -> list[list[tuple[int, str]]]:
    """The step and split of each delivery of each run, the longest run first: runs do not wait for each other."""
    result: dict[str, list[tuple[int, str]]] = {}
    for uid, query, _ in receiver.dumps:
        result.setdefault(uid, []).append((int(query["step"]), query["split"]))
    return sorted(result.values(), key=len, reverse=True)


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_eval_after_another_training_belongs_to_its_own_trainer(
    trl: SimpleNamespace, connected_receiver: Receiver, is_shared: bool
) -> None:
    first, second = build_named_trainer("first"), build_named_trainer("second")
    callbacks = [attach_callback(trl, first)]
    if is_shared:
        second.add_callback(callbacks[0])
    else:
        callbacks.append(attach_callback(trl, second))
    first.step(training=False, at=0), second.step(training=False, at=0)
    for trainer in (first, second):
        trainer.train(partial(trainer.step, at=0))
    first.step(training=False, at=1), second.step(training=False, at=1)
    for trainer in (first, second):
        callbacks[0].open_trainer_session(trainer).close("finished")
    for callback in callbacks:
        callback.run.finish(timeout=60)
    assert list_deliveries(connected_receiver) == [[(0, "eval"), (1, "train"), (1, "eval")]] * 2


def test_a_training_inside_another_one_ends_neither(trl: SimpleNamespace, connected_receiver: Receiver) -> None:
    outer, inner = build_named_trainer("outer"), build_named_trainer("inner")
    callbacks = [attach_callback(trl, outer), attach_callback(trl, inner)]

    def work() -> None:
        outer.step(at=0)
        inner.train(partial(inner.step, at=0))
        outer.step(at=1)

    outer.train(work)
    for callback in callbacks:
        end_training(callback)
    assert list_deliveries(connected_receiver) == [[(1, "train"), (2, "train")], [(1, "train")]]
    assert [body["outcome"] for body in connected_receiver.posted("/finish/")] == ["finished", "finished"]


def test_two_callbacks_of_a_trainer_record_all_its_trainings(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    trainer = build_named_trainer("twice")
    callbacks = [trl.Callback(project) for project in ("math", "copy")]
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.step(training=False, at=0)
    for _ in range(2):
        trainer.train(partial(trainer.step, at=0))
    for callback in callbacks:
        end_training(callback)
    uids = [uid for uid, _, _ in connected_receiver.dumps]
    assert sorted(map(uids.count, set(uids))) == [1, 1, 2, 2]  # a training, and an eval with the first one


def test_a_training_that_raised_has_failed_though_its_program_goes_on(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    def work() -> None:
        trainer.step(at=0)
        raise RuntimeError("no memory")

    trainer = build_named_trainer("raises")
    attach_callback(trl, trainer)
    with pytest.raises(RuntimeError, match="no memory"):
        trainer.train(work)
    trl.session.close_failed_trainings()  # as the end of the process does
    assert [body["outcome"] for body in connected_receiver.posted("/finish/")] == ["failed"]


def test_an_evaluate_method_with_other_arguments_still_works(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    class Other(Trainer):
        def evaluate(self, loader: str, eval_dataset: Any = None, **_: Any) -> None:  # type: ignore[override]
            self.step(training=False)

    trainer = Other()
    callback = attach_callback(trl, trainer)
    trainer.evaluate("loader", eval_dataset=["rows"])
    end_training(callback)
    assert len(connected_receiver.dumps) == 1


def test_metrics_are_named_as_transformers_integrations_name_them(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    trainer = Trainer()
    callback = attach_callback(trl, trainer)
    trainer.log({"loss": 1.0, "eval_reward": 0.5}), trainer.log({})
    end_training(callback)
    (point,) = connected_receiver.points()
    assert point["values"] == {"train/loss": 1.0, "eval/reward": 0.5}
    (created_run,) = [body for path, body in connected_receiver.posts if path.endswith("/runs/") and "config" in body]
    assert created_run["config"]["num_generations"] == 2 and created_run["framework"] == "trl"
    assert connected_receiver.run_headers[0][:2] == ("math", "tiny")


def test_the_end_of_a_training_waits_for_the_rows_that_are_still_built(
    trl: SimpleNamespace, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, original_rows = Trainer(), trl.module.CapturedGeneration.rows

    def build_rows_slowly(generation: Any, groups: Any) -> Any:
        return wait_until(lambda: generation.rewards is not None, 1) and original_rows(generation, groups)

    monkeypatch.setattr(trl.module.CapturedGeneration, "rows", build_rows_slowly)
    callback = attach_callback(trl, trainer)
    for step in range(3):
        trainer.step(at=step)
    callback.on_train_end(None, None, None)
    assert callback.session._jobs.unfinished_tasks == 0
    end_training(callback)
    assert [step for step, _ in list_completions(connected_receiver)] == [1, 2, 3]


def test_the_groups_with_tokens_are_complete_and_counted_over_all_processes_and_generations(
    trl: SimpleNamespace, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKENS", "groups:1")
    for rank in range(3):  # 12 rows of 2 groups: the second process has rows of both
        monkeypatch.setenv("ROLLOUTDECK_RUN_ID", f"rank{rank}")  # not all launchers give them a common id
        trainer = Trainer(rank, world=3, num_generations=6)
        callback = attach_callback(trl, trainer)
        trainer.step(at=0), trainer.step(at=0), trainer.step(at=1)
        end_training(callback)
    for step in ("1", "2"):
        lines = [
            line for _, query, body in connected_receiver.dumps if query["step"] == step for line in body.splitlines()
        ]
        groups = [row["group"] for row in map(json.loads, lines) if "response_ids" in row]
        assert len(groups) == 6 and len(set(groups)) == 1


@pytest.mark.parametrize("hook", ["on_init_end", "on_train_begin", "on_log", "on_train_end"])
def test_an_error_in_a_hook_of_the_callback_does_not_reach_the_trainer(
    trl: SimpleNamespace, caplog: pytest.LogCaptureFixture, hook: str
) -> None:
    callback = trl.Callback("math")
    callback._recording = SimpleNamespace()  # it has none of the expected attributes
    callback._start_capture = None
    values = {"logs": {"loss": 1.0}} if hook == "on_log" else {}
    getattr(callback, hook)(None, SimpleNamespace(is_world_process_zero=True, global_step=1), None, **values)
    assert f"lost something in callback.{hook}" in caplog.text


def test_an_error_in_the_capture_of_a_generation_does_not_reach_the_trainer(
    trl: SimpleNamespace,
    connected_receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = Trainer()
    callback = attach_callback(trl, trainer)
    monkeypatch.setattr(capture, "get_end_ids", None)
    trainer.step(at=0)
    assert "lost something in capture._capture" in caplog.text
    assert not connected_receiver.dumps and callback.run
    assert callback.run._threads.spool.dropped == {"TRL callback: batches that could not be copied from the trainer": 1}


def test_the_first_rank_logs_the_generation_time_of_a_train_step(
    trl: SimpleNamespace, connected_receiver: Receiver
) -> None:
    for rank in (1, 0):
        trainer = GeneratingTrainer(rank=rank, world=2)
        callback = attach_callback(trl, trainer)
        trainer.step(at=4), trainer.step(training=False, at=5)
        end_training(callback)
    (point,) = connected_receiver.points()
    assert (point["step"], [*point["values"]]) == (5, ["timing_s/gen"]) and point["values"]["timing_s/gen"] > 0
