"""Metrics as trainers write them: a step and numbers per line, or the state of a trainer. Real files: data/metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import METRIC_FORMATS, flat_metrics, select_format, trainer_state
from rollouts.metrics import list_metric_names, load_curves
from rollouts.models import Dump, Run
from rollouts.samples.record import LineProblem, MetricPoint, SkippedRow
from tests.rollouts.support.push import index_file, lines
from tests.rollouts.support.trainer_dumps import DATA, read_items

METRICS = DATA / "metrics"
STATE = "metrics/trl/checkpoint-4/trainer_state.json"
FILES = {
    STATE: "train/reward",
    "metrics/swift/logging.jsonl": "train/reward",
    "metrics/art/history.jsonl": "train/reward",
    "tinker/metrics.jsonl": "env/all/reward/total",
}


def read_points(*rows: Any, **options: Any) -> list[Any]:
    return read_items(flat_metrics, b"".join(json.dumps(row).encode() + b"\n" for row in rows), **options)


@pytest.mark.django_db
@pytest.mark.parametrize("path", FILES)
def test_a_trainers_own_file_becomes_curves(run: Run, path: str) -> None:
    dump = index_file(run, (DATA / path).read_bytes(), None, source=Path(path).name)
    assert dump.format in METRIC_FORMATS and not dump.problems
    curves = load_curves([run], [FILES[path]])[run.uid][FILES[path]]
    assert [step for curve in curves for step in curve["steps"]]


@pytest.mark.django_db
def test_the_states_of_two_checkpoints_are_one_curve_with_the_values_of_the_file(run: Run) -> None:
    state = json.loads((DATA / STATE).read_bytes())
    before = state | {"global_step": 2, "log_history": [row for row in state["log_history"] if row["step"] <= 2]}
    for step, document in ((4, state), (2, before)):
        index_file(run, json.dumps(document, indent=2).encode(), None, source=f"checkpoint-{step}/trainer_state.json")
    written = {row["step"]: row["loss"] for row in state["log_history"] if "loss" in row}
    (curve,) = load_curves([run], ["train/loss"])[run.uid]["train/loss"]
    assert dict(zip(curve["steps"], curve["values"], strict=True)) == pytest.approx(written)
    assert "eval/reward" in list_metric_names(run) and "loss" not in list_metric_names(run)


def test_every_value_of_a_log_is_read_under_the_names_of_the_trackers() -> None:
    (point, *_), rows = read_items(trainer_state, (DATA / STATE).read_bytes()), json.loads((DATA / STATE).read_bytes())
    first = rows["log_history"][0]
    assert (point.step, len(point.values)) == (first["step"], len(first) - 1)
    assert point.values["train/grad_norm"] == first["grad_norm"]


def test_a_trainer_state_and_a_log_file_have_the_same_metric_names() -> None:
    lines = read_items(flat_metrics, (METRICS / "swift/logging.jsonl").read_bytes())
    assert lines[-1] == SkippedRow("a summary that repeats the rows before it")
    state = read_items(trainer_state, (DATA / STATE).read_bytes())
    assert {"train/loss", "train/rewards/length/mean"} <= set(lines[0].values) & set(state[0].values)
    assert "eval/loss" in lines[2].values
    assert [point.step for point in lines[:-1]] == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "row",
    [
        {"step": 5}, {"global_step": 5.0}, {"global_step/max_steps": "5/100"}, {"iteration": "5/9"}, {"_step": 5},
        {"current_steps": 5, "total_steps": 9}, {"step": 5, "training_step": 5}, {"trainer/global_step": 5},
    ],
)  # fmt: skip
def test_a_step_is_read_under_its_different_names_and_is_no_metric(row: dict[str, Any]) -> None:
    (point,) = read_points(row | {"loss": 0.5})
    assert point.step == 5
    assert {name.removeprefix("train/") for name in point.values} == {"loss", *set(row) & {"total_steps"}}


def test_numbers_inside_objects_and_in_texts_are_values_and_other_texts_are_not() -> None:
    (point,) = read_points(
        {"step": 1, "loss": {"kl": 0.5, "deep": {"er": 1}}, "lr": "1e-05", "eta": "3m 2s", "nan": None}
    )
    assert point == MetricPoint(1, {"loss/kl": 0.5, "loss/deep/er": 1.0, "lr": 1e-05, "nan": None})


@pytest.mark.parametrize("time", [{"_timestamp": 1.7e9}, {"time": 1.7e9}, {"recorded_at": "2023-11-14T22:13:20+00:00"}])
def test_the_timestamp_of_a_row_is_its_time(time: dict[str, Any]) -> None:
    (point,) = read_points({"step": 1, "loss": 0.5, **time})
    assert (point.time, point.values) == (1.7e9, {"loss": 0.5})


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9])
def test_a_timestamp_in_parts_of_a_second_is_converted(scale: float) -> None:
    (point,) = read_points({"step": 1, "loss": 0.5, "timestamp": 1.7e9 * scale})
    assert (point.time, point.values) == (pytest.approx(1.7e9), {"loss": 0.5})


def test_a_duration_is_a_value_and_not_the_time_of_the_row() -> None:
    (point,) = read_points({"step": 1, "time": 12.5})
    assert (point.time, point.values) == (None, {"time": 12.5})


def test_a_row_without_a_step_gets_the_step_of_the_upload_or_is_reported() -> None:
    assert read_points({"loss": 1.0}, step=7) == [MetricPoint(7, {"loss": 1.0})]
    problem, point, empty = read_points({"loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 3, "spans": []}, step=None)
    assert isinstance(problem, LineProblem) and "has no step" in problem.reason
    assert point.values == {"loss": 2.0} and empty == SkippedRow("a row without a number")


@pytest.mark.parametrize(
    "row",
    [
        {"step": 1, "prompt": "2+2?", "completion": "4", "reward": 1.0}, {"step": 1, "output": "4", "score": 1.0},
        {"step": 1, "response_ids": [1], "reward": 1.0}, {"step": 1, "text": "a" * 300, "value": 1.0}, {"step": 1},
        {"loss": 1.0}, {"step": 1, "name": "checkpoint"}, {"step": "soon", "loss": 1.0}, {"step": True, "loss": 1.0},
    ],
)  # fmt: skip
def test_rows_of_generations_and_incomplete_rows_are_no_metrics(row: dict[str, Any]) -> None:
    assert not flat_metrics.sniff("metrics.jsonl", json.dumps(row).encode())


def test_a_count_named_like_a_response_is_a_metric() -> None:
    assert flat_metrics.sniff("metrics.jsonl", b'{"step": 1, "completions": 64, "reward": 0.5}')


@pytest.mark.parametrize("body", [b"[]", b'{"log_history": 5}', b'{"global_step": 3}', b"{", b"\xff\xfe"])
def test_a_state_without_logs_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(UnreadableDumpError):
        read_items(trainer_state, body)


def test_a_log_that_is_no_object_is_reported_and_the_others_are_read() -> None:
    problem, point = read_items(trainer_state, b'{"log_history": [5, {"step": 1, "loss": NaN}]}')
    assert (problem.line, point) == (1, MetricPoint(1, {"train/loss": None}))
    assert select_format("checkpoint-1/trainer_state.json", b'{"log_history": [').name == "trainer-state"


@pytest.mark.parametrize("step", [2**63, 10**19, 1e25, -(2**63)])
def test_only_the_row_with_a_step_beyond_the_range_of_the_database_is_rejected(run: Run, step: float) -> None:
    rows = [{"step": 1, "loss": 0.5}, {"step": step, "loss": 0.4}, {"step": 2, "loss": 0.3}]
    dump = index_file(run, lines(*rows), None, source="metrics.jsonl")
    assert (dump.state, dump.rows, dump.rejected) == (Dump.State.INDEXED, 2, 1)
