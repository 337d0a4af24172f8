"""The rows that slime's four hooks record, with the samples of slime's own dumps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.client import start
from rolloutdeck.trainers import slime
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common import session as common_session
from rolloutdeck.trainers.slime.plugin import record, session
from tests.rolloutdeck.support.fake_server import Receiver
from tests.rolloutdeck.support.fake_slime import Sample, arguments, read_samples
from tests.support.patching import patch_everywhere


@pytest.fixture
def slime_receiver(connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver to which slime's hooks record all tokens without delay."""
    monkeypatch.setenv("ROLLOUTDECK_TOKENS", "all")
    monkeypatch.setattr(record, "pending_samples", record.UnsentSamples())
    monkeypatch.setattr(record, "LIVE_SECONDS", 0.0)
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    monkeypatch.setattr(common_session, "MAX_WAITING_STEPS", 100)  # no time passes between rollouts here
    common_session._sessions.clear()
    yield connected_receiver
    for item in common_session._sessions.values():
        item.run.finish(timeout=0)
    common_session._sessions.clear()
    start._runs.clear()


def wait_for_deliveries(slime_receiver: Receiver, split: str) -> list[tuple[int, list[dict[str, Any]]]]:
    """(step, rows) of each delivery, once all have arrived."""
    (trainer_session,) = common_session._sessions.values()
    trainer_session.flush(60)
    trainer_session.run.finish(timeout=60)
    matches = [(int(query["step"]), body) for _, query, body in slime_receiver.dumps if query["split"] == split]
    return [(step, [json.loads(line) for line in body.splitlines()]) for step, body in matches]


def test_a_rollout_is_recorded_once_with_the_groups_that_a_filter_dropped(slime_receiver: Receiver) -> None:
    args, samples = arguments(reward_key="acc"), read_samples("0.pt")
    for position, sample in enumerate(samples):
        sample.reward = {"acc": float(position % 2), "format": 0.5}
    groups = [samples[first : first + 4] for first in range(0, 32, 4)]
    slime.all_samples(args, groups, None)
    assert args.processed_group_count == 8
    assert slime.log_rollout(7, args, samples[:24], {"rollout/x": 1.0}, 2.5) is False
    for sample in samples:  # as slime changes them later
        sample.response, sample.reward = "another", 0.0
    ((step, result),) = wait_for_deliveries(slime_receiver, "train")
    assert (step, [row.get("filtered", False) for row in result]) == (7, [False] * 24 + [True] * 8)
    assert [row["response"] for row in result] == [sample.response for sample in read_samples("0.pt")]
    assert [len(row["response_ids"]) for row in result] == [sample.response_length for sample in samples]
    assert [(row["score"], row["rewards"]) for row in result[:2]] == [(0.0, {"format": 0.5}), (1.0, {"format": 0.5})]
    assert {query["step_kind"] for _, query, _ in slime_receiver.dumps} == {"rollout_id"}
    (point,) = slime_receiver.points()
    assert point["values"] == {"rollout/x": 1.0, "perf/rollout_time": 2.5, "rollout/reward": 0.5}
    assert point["step_kind"] == "rollout_id" and args.logged_rollout_id == 7


def test_read_only_arguments_and_a_sample_without_a_rollout_raise_no_error(
    slime_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnlyArguments(SimpleNamespace):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(name)

    assert slime.log_rollout(0, ReadOnlyArguments(), read_samples("0.pt")[:4], None, 1.0) is False
    assert "lost something in record._set_private_argument" in caplog.text
    caplog.clear()
    slime.sample_hook(arguments(), read_samples("0.pt")[0], rollout_id=None)
    assert "lost something" not in caplog.text and record.pending_samples.live_samples == {}


def test_a_forked_child_does_not_record_the_samples_that_wait_in_its_parent(slime_receiver: Receiver) -> None:
    record.pending_samples.live_samples[3, "train"], record.pending_samples.all_samples = (
        read_samples("0.pt")[:1],
        read_samples("0.pt")[:2],
    )
    record.pending_samples.lock.acquire()  # as another thread of the parent may hold it
    if not (child := os.fork()):
        is_free = record.pending_samples.lock.acquire(blocking=False)
        os._exit(
            0 if is_free and not record.pending_samples.live_samples and not record.pending_samples.all_samples else 1
        )
    record.pending_samples.lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(record.pending_samples.all_samples) == 2


def test_a_rollout_has_no_groups_of_the_rollouts_before(slime_receiver: Receiver) -> None:
    args, samples = arguments(), read_samples("0.pt")
    for step in (0, 1):
        slime.all_samples(args, [samples[:4], samples[4:8]], None)
        slime.log_rollout(step, args, samples[:4], None, 1.0)
    slime.log_rollout(2, args, samples[:4], None, 1.0)
    assert [(step, len(result)) for step, result in wait_for_deliveries(slime_receiver, "train")] == [
        (0, 8),
        (1, 8),
        (2, 4),
    ]


def test_groups_of_a_rollout_that_was_never_logged_are_counted_as_lost(
    slime_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    samples = read_samples("0.pt")
    slime.all_samples(arguments(), [samples[:4]], None)
    slime.all_samples(arguments(), [samples[4:8]], None)
    slime.log_rollout(1, arguments(), samples[4:8], None, 1.0)
    assert [len(result) for _, result in wait_for_deliveries(slime_receiver, "train")] == [4]
    message = "leaves out groups of rollouts that were not logged (is --custom-rollout-log-function-path set?)"
    assert message in caplog.text
    (trainer_session,) = common_session._sessions.values()
    assert trainer_session.run._threads.spool.dropped == {"slime: groups of rollouts that were not logged": 4}


def test_a_sample_is_recorded_only_when_its_generation_is_complete(slime_receiver: Receiver) -> None:
    first, second = read_samples("0.pt")[:2]
    first.reward = second.reward = None
    for state in ("pending", "aborted"):
        slime.sample_hook(arguments(), Sample(prompt="half", response="ans", status=state), rollout_id=3)
    slime.sample_hook(arguments(), second, rollout_id=None)
    assert slime.sample_hook(arguments(), first, rollout_id=3) is None
    slime.sample_hook(arguments(), second, rollout_id=3, evaluation=True)
    ((step, (row,)),) = wait_for_deliveries(slime_receiver, "train")
    assert step == 3 and row["response"] == first.response and "score" not in row
    assert [(step, len(result)) for step, result in wait_for_deliveries(slime_receiver, "eval")] == [(3, 1)]


def test_live_samples_wait_for_each_other_and_for_the_end_of_their_rollout(
    slime_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LIVE_SECONDS", 1e6)
    monkeypatch.setattr(record.pending_samples, "sent_at", record.time.monotonic())
    samples = read_samples("0.pt")
    for sample in samples:
        slime.sample_hook(arguments(), sample, rollout_id=3)
        slime.sample_hook(arguments(), sample, rollout_id=3, evaluation=True)
    assert {key: len(waiting) for key, waiting in record.pending_samples.live_samples.items()} == {
        (3, "train"): 32,
        (3, "eval"): 32,
    }
    slime.log_rollout(3, arguments(), samples, None, 1.0)
    slime.log_eval(3, arguments(), {"aime": {"samples": samples}}, None)
    assert record.pending_samples.live_samples == {}
    assert [len(result) for split in ("train", "eval") for _, result in wait_for_deliveries(slime_receiver, split)] == [
        32,
        32,
    ]


def test_a_waiting_sample_is_recorded_as_it_was_generated_and_the_next_one_waits_again(
    slime_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LIVE_SECONDS", 1e6)
    first, second, third = read_samples("0.pt")[:3]
    monkeypatch.setattr(record.pending_samples, "sent_at", record.time.monotonic())
    slime.sample_hook(arguments(), first, rollout_id=3)
    message, first.response = first.response, "another"
    record.pending_samples.sent_at -= 2e6
    slime.sample_hook(arguments(), second, rollout_id=3)
    slime.sample_hook(arguments(), third, rollout_id=3)
    ((_, rows),) = wait_for_deliveries(slime_receiver, "train")
    assert [row["response"] for row in rows] == [message, second.response]
    assert [item.response for item in record.pending_samples.live_samples[3, "train"]] == [third.response]


def test_the_number_of_waiting_live_samples_is_limited(
    slime_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LIVE_SECONDS", 1e6)
    monkeypatch.setattr(record, "MAX_LIVE_SAMPLES", 5)
    monkeypatch.setattr(record.pending_samples, "sent_at", record.time.monotonic())
    for sample in read_samples("0.pt"):
        slime.sample_hook(arguments(), sample, rollout_id=3)
    assert {key: len(waiting) for key, waiting in record.pending_samples.live_samples.items()} == {(3, "train"): 5}


def test_an_eval_records_each_data_set_with_the_scores_that_slime_uses(slime_receiver: Receiver) -> None:
    samples = read_samples("0.pt")[:4]
    for sample in samples:
        sample.reward = {"acc": 0.75, "format": 0.5}
    sets: dict[str, Any] = {
        "aime": {"samples": samples, "rewards": [0.25] * 4, "truncated": [False, True, False, False]},
        "gsm": {"samples": samples, "rewards": [1.0], "truncated": []},  # of another length: not recorded for each row
    }
    assert slime.log_eval(5, arguments(eval_reward_key="acc", reward_key="format"), sets, {"eval/x": 3.0}) is False
    ids = [len(sample.tokens) for sample in samples]
    for sample in samples:
        sample.reward, sample.tokens = 0.0, []
    result = wait_for_deliveries(slime_receiver, "eval")
    assert [(step, {(row["data_source"], row["group"]) for row in rows}) for step, rows in result] == [
        (5, {(name, f"{name}:{samples[0].group_index}")}) for name in ("aime", "gsm")
    ]
    assert [(row["score"], row["truncated"]) for row in result[0][1]] == [
        (0.25, False), (0.25, True), (0.25, False), (0.25, False),
    ]  # fmt: skip
    assert [row["score"] for row in result[1][1]] == [0.75] * 4
    assert [[len(row["prompt_ids"] + row["response_ids"]) for row in rows] for _, rows in result] == [ids, ids]
    earlier = [[row.get("earlier_equal_samples", 0) for row in rows] for _, rows in result]
    assert earlier[0] == [0] * 4 and all(earlier[1]), "equal samples of two data sets are two samples"
    (values,) = [point["values"] for point in slime_receiver.points()]
    assert values == {"eval/aime": 0.25, "eval/aime-truncated_ratio": 0.25, "eval/gsm": 1.0, "eval/x": 3.0}


def test_a_dump_is_reported_if_its_name_has_the_rollout_and_it_was_not_loaded(
    slime_receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (0, 1):
        (tmp_path / f"{step}.pt").write_bytes(b"x")
    template = str(tmp_path / "{rollout_id}.pt")
    for step, more in (
        (0, {"save_debug_rollout_data": template, "rolloutdeck_send_dumps": True}),
        (1, {"save_debug_rollout_data": template, "load_debug_rollout_data": "/old/{rollout_id}.pt"}),
        (1, {"save_debug_rollout_data": str(tmp_path / "1.pt")}),
        (2, {"save_debug_rollout_data": template}),
        (1, {}),
    ):
        slime.log_rollout(step, arguments(hf_checkpoint="/qwen", **more), read_samples("0.pt")[:4], None, 1.0)
    assert len(wait_for_deliveries(slime_receiver, "train")) == 5
    artifacts = [body for path, body in slime_receiver.posts if path.endswith("/artifacts/")]
    assert [(body["step"], body["step_kind"], list(body["files"]), body["facts"]["rows"]) for body in artifacts] == [
        (0, "rollout_id", ["0.pt"], 4)
    ]
    facts = {"model": "/qwen", "prompts": 8, "samples_per_prompt": 4, "role": "rollout", "format": "slime-rollout"}
    assert facts.items() <= artifacts[0]["facts"].items()
    assert artifacts[0]["send_now"] and "2.pt" not in caplog.text


def test_a_run_has_slimes_name_and_its_arguments_without_the_keys(slime_receiver: Receiver, tmp_path: Path) -> None:
    save = str(tmp_path / "checkpoints")
    values = {"wandb_project": "sums", "wandb_group": "qwen", "wandb_key": "a secret", "save": save, "load": save}
    slime.log_rollout(0, arguments(**values), read_samples("0.pt")[:4], None, 1.0)
    (trainer_session,) = common_session._sessions.values()
    trainer_session.run.finish(timeout=60)
    assert slime_receiver.run_headers[0] == ("sums", "qwen", "allow")
    (created_run,) = [body for path, body in slime_receiver.posts if path.endswith("/runs/") and "config" in body]
    assert created_run["config"]["wandb_project"] == "sums" and "wandb_key" not in created_run["config"]


def test_a_new_run_begins_after_one_that_ended_and_the_environment_names_it(
    slime_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = session.get_slime_session(arguments(wandb_project="sums", wandb_group="qwen"))
    assert session.get_slime_session(arguments()) is first
    first.run.finish(timeout=60)
    for name in ("PROJECT", "RUN"):
        monkeypatch.setenv(f"ROLLOUTDECK_{name}", name.lower())
    second = session.get_slime_session(
        arguments(wandb_project="sums", wandb_group="qwen", save="relative", load="other")
    )
    assert second is not first and (second.run.project, second.run.name) == ("project", "run")
    second.run.finish(timeout=60)
    assert ("project", "run", "") in slime_receiver.run_headers


def test_a_relative_checkpoint_folder_is_ignored_because_it_differs_between_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(common_session, "init", lambda **request: request["checkpoint_dir"])
    assert session.open_slime_run(arguments(save="/checkpoints")) == "/checkpoints"
    assert session.open_slime_run(arguments(save="checkpoints")) is session.open_slime_run(arguments()) is None
