"""Seconds of a sample in the forms that programs log them, and its staleness."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.samples.record import Record
from rollouts.samples.timing import SampleTiming, compute_staleness, read_duration, read_timing


@pytest.mark.parametrize(
    ("timing", "metrics", "expected"),
    [
        ({"generation": 3.0, "tool": 1.5, "reward": 0.5}, None, SampleTiming(3.0, 1.5, 0.5, 5.0)),
        ({"generation_ms": 1250, "scoring_ms": 100, "total_ms": 1400}, None, SampleTiming(1.25, None, 0.1, 1.4)),
        (None, {"generate_sequences": 2.0, "tool_calls": 0.5, "num_preempted": 9}, SampleTiming(2.0, 0.5, None, 2.5)),
        (
            {"start": 1.0, "agent": {"start": 1.0, "end": 4.0, "model": {"duration": 2.0}}},
            None,
            SampleTiming(2.0, None, None, 2.0),
        ),
        ({"start": 10.0, "end": 14.5}, None, SampleTiming(total=4.5)),
        ({"total": 7}, None, SampleTiming(total=7.0)),
        ({"non_generation": 0.2}, None, SampleTiming(tool=0.2)),  # not how long the sample took
        ({"generation": float("nan"), "tool": -1, "reward": True, "odd": "x"}, None, SampleTiming()),
        ("12 s", ["x"], SampleTiming()),
    ],
)
def test_parts_are_read_in_seconds(timing: Any, metrics: Any, expected: SampleTiming) -> None:
    read = read_timing(timing, metrics)
    assert read.generation == pytest.approx(expected.generation)
    assert (read.tool, read.reward) == (pytest.approx(expected.tool), pytest.approx(expected.reward))
    assert read.total == pytest.approx(expected.total)


@pytest.mark.parametrize(
    ("version", "extras", "expected"),
    [
        (4, {"trainer_version": 7}, 3),
        (4, {"trainer_version": 4.0}, 0),
        (8, {"trainer_version": 7}, None),  # counted from another number
        (None, {"trainer_version": 7}, None),
        (4, {}, None),
        (4, {"trainer_version": True}, None),
        (None, {"staleness": 2}, 2),
        (None, {"staleness": -1}, None),
        (4, {"trainer_version": 7, "staleness": 9}, 3),
    ],
)
def test_staleness_needs_both_versions(version: int | None, extras: dict[str, Any], expected: int | None) -> None:
    assert compute_staleness(Record("p", "r", policy_version=version, extras=extras)) == expected


def test_a_logged_duration_counts_without_timings() -> None:
    assert read_duration(Record("p", "r", extras={"duration": 3})) == 3.0
    assert read_duration(Record("p", "r")) is None
