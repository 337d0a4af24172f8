"""Curves with hours instead of steps on the x axis."""

from __future__ import annotations

from typing import Any

from rollouts.metrics import series
from rollouts.models import Run
from rollouts.samples.record import MetricPoint
from tests.support import builders


def log_hours(run: Run, steps: dict[int, float | None], attempt: str = "a") -> None:
    """Logs points from {step: hours since a fixed time}."""
    points = [
        MetricPoint(step, {"loss": float(step)}, "global_step", None if hours is None else hours * 3600)
        for step, hours in steps.items()
    ]
    series.append_points(run, builders.attempt(run, attempt), points)


def load_hours(run: Run, name: str = "loss", **options: Any) -> list[list[float]]:
    curves = series.load_curves([run], [name], **options)
    return [curve["hours"] for curve in series.add_time_axis([run], curves)[run.uid][name]]


def test_points_have_the_hours_of_the_trainers_clock(run: Run) -> None:
    log_hours(run, {1: 100, 2: 100.5, 3: 102})
    assert load_hours(run) == [[0, 0.5, 2]]


def test_a_point_without_a_time_is_between_its_neighbours(run: Run) -> None:
    log_hours(run, {1: 100, 2: None, 3: 102})
    assert load_hours(run) == [[0, 1, 2]]


def test_a_clock_that_was_set_back_does_not_move_a_curve_backwards(run: Run) -> None:
    log_hours(run, {1: 100, 2: 99, 3: 102})
    assert load_hours(run) == [[0, 0, 2]]


def test_a_later_attempt_goes_on_after_the_first(run: Run) -> None:
    log_hours(run, {1: 100, 2: 101})
    log_hours(run, {2: 110, 3: 111}, "b")
    assert load_hours(run) == [[0], [10, 11]]
    assert load_hours(run, attempt="all") == [[0, 1], [10, 11]]


def test_a_run_without_times_has_no_curve_over_time(run: Run) -> None:
    log_hours(run, {1: None, 2: None})
    assert load_hours(run) == []


def test_files_without_a_clock_use_the_times_of_the_runs_other_attempt(run: Run) -> None:
    log_hours(run, {1: 100, 2: 101, 3: 103})
    points = [MetricPoint(at, {"samples_logged": 1.0}, "global_step", None) for at in (1, 3)]
    series.append_points(run, builders.attempt(run, "files"), points)
    assert load_hours(run, "samples_logged", attempt="all") == [[0, 3]]


def test_files_without_a_clock_use_the_times_of_each_attempt_of_a_resumed_run(run: Run) -> None:
    log_hours(run, {1: 100, 2: 101, 3: 102})
    log_hours(run, {3: 110, 4: 112}, "b")
    points = [MetricPoint(at, {"samples_logged": 1.0}, "global_step", None) for at in (1, 2, 3, 4)]
    series.append_points(run, builders.attempt(run, "files"), points)
    assert load_hours(run, "samples_logged", attempt="all") == [[0, 1, 10, 12]]
