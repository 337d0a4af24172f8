"""Curves over hours instead of steps."""

from __future__ import annotations

from typing import Any

from rollouts.metrics import series
from rollouts.models import Run
from rollouts.samples.record import MetricPoint
from tests.support import builders


def log(run: Run, steps: dict[int, float | None], attempt: str = "a") -> None:
    """{step: hours since some day}."""
    points = [
        MetricPoint(at, {"loss": float(at)}, "global_step", None if result is None else result * 3600)
        for at, result in steps.items()
    ]
    series.append_points(run, builders.attempt(run, attempt), points)


def hours(run: Run, name: str = "loss", **how: Any) -> list[list[float]]:
    curves = series.load_curves([run], [name], **how)
    return [curve["hours"] for curve in series.add_time_axis([run], curves)[run.uid][name]]


def test_points_stand_where_the_trainers_clock_stood(run: Run) -> None:
    log(run, {1: 100, 2: 100.5, 3: 102})
    assert hours(run) == [[0, 0.5, 2]]


def test_a_point_without_a_moment_lies_between_its_neighbours(run: Run) -> None:
    log(run, {1: 100, 2: None, 3: 102})
    assert hours(run) == [[0, 1, 2]]


def test_a_clock_that_was_set_back_draws_nothing_backwards(run: Run) -> None:
    log(run, {1: 100, 2: 99, 3: 102})
    assert hours(run) == [[0, 0, 2]]


def test_a_later_attempt_goes_on_after_the_first(run: Run) -> None:
    log(run, {1: 100, 2: 101})
    log(run, {2: 110, 3: 111}, "b")
    assert hours(run) == [[0], [10, 11]]
    assert hours(run, attempt="all") == [[0, 1], [10, 11]]


def test_a_run_whose_clock_was_never_told_has_no_curve_over_time(run: Run) -> None:
    log(run, {1: None, 2: None})
    assert hours(run) == []


def test_files_without_a_clock_use_the_times_of_the_runs_other_attempt(run: Run) -> None:
    log(run, {1: 100, 2: 101, 3: 103})
    points = [MetricPoint(at, {"samples_logged": 1.0}, "global_step", None) for at in (1, 3)]
    series.append_points(run, builders.attempt(run, "files"), points)
    assert hours(run, "samples_logged", attempt="all") == [[0, 3]]


def test_files_without_a_clock_use_the_times_of_each_attempt_of_a_resumed_run(run: Run) -> None:
    log(run, {1: 100, 2: 101, 3: 102})
    log(run, {3: 110, 4: 112}, "b")
    points = [MetricPoint(at, {"samples_logged": 1.0}, "global_step", None) for at in (1, 2, 3, 4)]
    series.append_points(run, builders.attempt(run, "files"), points)
    assert hours(run, "samples_logged", attempt="all") == [[0, 1, 10, 12]]
