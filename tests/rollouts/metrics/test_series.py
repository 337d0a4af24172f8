"""Metric points are stored, compacted, loaded as curves and downsampled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from rollouts.errors import InvalidInputError
from rollouts.metrics import blocks, series
from rollouts.metrics.blocks import MAX_BLOCK_POINTS, TIME_METRIC, PointArrays, compact_metric_rows, join_points
from rollouts.metrics.downsample import Downsampler, choose_bucket_shift
from rollouts.models import Attempt, Block, MetricRow, Project, Run, Series, Step
from rollouts.samples.record import MetricPoint
from tests.support import builders


def log_steps(
    run: Run, steps: Iterable[int], *, attempt: str = "one", start: float = 0.0, name: str = "loss"
) -> Attempt:
    """Logs points whose value is step + start."""
    attempt_row = builders.attempt(run, attempt)
    series.append_points(run, attempt_row, [MetricPoint(step, {name: step + start}) for step in steps])
    return attempt_row


def load_curve(run: Run, name: str = "loss", **options: object) -> list[tuple[int, float | None]]:
    """Step and value over all attempts in order."""
    curves = series.load_curves(run, [name], **options)[run.uid][name]  # type: ignore[arg-type]
    return [pair for piece in curves for pair in zip(piece["steps"], piece["values"], strict=True)]


def test_points_are_readable_before_and_after_compaction(run: Run) -> None:
    log_steps(run, range(1, 601))
    before = load_curve(run)
    assert compact_metric_rows(run.pk) == 600
    assert MetricRow.objects.count() == 0
    assert load_curve(run) == before == [(step, float(step)) for step in range(1, 601)]


def test_few_rows_are_not_compacted_by_default(run: Run) -> None:
    log_steps(run, range(10))
    assert compact_metric_rows(run.pk) == 0
    assert compact_metric_rows(run.pk, min_rows=1) == 10


def test_a_second_compaction_changes_nothing(run: Run) -> None:
    log_steps(run, range(700))
    compact_metric_rows(run.pk)
    stored = list(Block.objects.values_list("series", "first", "last", "count"))
    assert compact_metric_rows(run.pk, min_rows=1) == 0
    assert list(Block.objects.values_list("series", "first", "last", "count")) == stored


def test_a_row_that_is_committed_during_compaction_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL a row may become visible after rows with larger ids."""
    log_steps(run, range(1, 600))
    row = MetricRow.objects.order_by("pk").first()
    assert row
    row_values = {name: getattr(row, name) for name in ("run_id", "attempt_id", "step_kind", "step", "time", "values")}
    MetricRow.objects.filter(pk=row.pk).delete()
    merge_into_blocks = blocks.merge_into_blocks

    def merge(*args: Any) -> None:
        MetricRow.objects.create(pk=row.pk, **row_values)
        merge_into_blocks(*args)

    monkeypatch.setattr(blocks, "merge_into_blocks", merge)
    compact_metric_rows(run.pk)
    assert list(MetricRow.objects.values_list("pk", flat=True)) == [row.pk]


def test_the_last_value_of_a_step_counts_before_and_after_compaction(run: Run) -> None:
    log_steps(run, range(600))
    compact_metric_rows(run.pk)
    log_steps(run, [5, 5, 599], start=0.5)
    assert dict(load_curve(run))[5] == 5.5
    compact_metric_rows(run.pk, min_rows=1)
    assert dict(load_curve(run))[5] == 5.5
    assert [step for step, _ in load_curve(run)] == list(range(600))


def test_several_points_of_one_step_are_joined_by_name(run: Run) -> None:
    attempt = builders.attempt(run)
    series.append_points(run, attempt, [MetricPoint(1, {"a": 1.0}), MetricPoint(1, {"b": 2.0})])
    assert load_curve(run, "a") == [(1, 1.0)] and load_curve(run, "b") == [(1, 2.0)]


def test_an_old_step_rewrites_its_own_block_only(run: Run) -> None:
    log_steps(run, range(0, 3 * MAX_BLOCK_POINTS * 2, 2))
    compact_metric_rows(run.pk, min_rows=1)
    assert list(Block.objects.order_by("first").values_list("count", flat=True)) == [MAX_BLOCK_POINTS] * 3
    ids = list(Block.objects.order_by("first").values_list("pk", flat=True))
    log_steps(run, [7])
    compact_metric_rows(run.pk, min_rows=1)
    blocks_after = list(Block.objects.order_by("first").values_list("pk", "count"))
    assert [pk for pk, _ in blocks_after if pk in ids] == ids[1:]
    assert max(count for _, count in blocks_after) == MAX_BLOCK_POINTS
    assert len(load_curve(run)) == 3 * MAX_BLOCK_POINTS + 1 and dict(load_curve(run))[7] == 7.0


def test_new_steps_fill_the_last_block(run: Run) -> None:
    for start in range(0, 6000, 1500):
        log_steps(run, range(start, start + 1500))
        compact_metric_rows(run.pk)
    assert list(Block.objects.order_by("first").values_list("count", flat=True)) == [
        MAX_BLOCK_POINTS,
        6000 - MAX_BLOCK_POINTS,
    ]


def test_a_kill_during_compaction_loses_and_duplicates_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    log_steps(run, range(600))
    rewrite_blocks = blocks.rewrite_blocks

    def rewrite_and_interrupt(changes: object) -> None:
        rewrite_blocks(changes)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "rewrite_blocks", rewrite_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        compact_metric_rows(run.pk)
    assert (MetricRow.objects.count(), Block.objects.count(), Series.objects.count()) == (600, 0, 0)
    monkeypatch.undo()
    compact_metric_rows(run.pk)
    assert len(load_curve(run)) == 600


def test_nan_is_a_gap_and_infinity_is_kept_but_not_served(run: Run) -> None:
    attempt = builders.attempt(run)
    values = [1.0, None, math.nan, math.inf, -math.inf]
    series.append_points(run, attempt, [MetricPoint(step, {"loss": value}) for step, value in enumerate(values)])
    compact_metric_rows(run.pk, min_rows=1)
    assert [value for _, value in load_curve(run)] == [1.0, None, None, None, None]
    json.dumps(series.load_curves(run, ["loss"]), allow_nan=False)
    packed = blocks.unpack_block(*Block.objects.values_list(*blocks.BLOCK_COLUMNS).get())[1]
    assert np.array_equal(packed, [1.0, math.nan, math.nan, math.inf, -math.inf], equal_nan=True)


@pytest.mark.parametrize("steps", [[7], [7, 8, 9], [10, 20, 30], [1, 2, 4], [-(2**62), 2**62]])
def test_steps_are_restored_and_stored_only_without_a_constant_stride(run: Run, steps: list[int]) -> None:
    log_steps(run, steps)
    compact_metric_rows(run.pk, min_rows=1)
    assert [step for step, _ in load_curve(run)] == steps
    assert bool(len(Block.objects.get().steps)) == (steps in ([1, 2, 4], [-(2**62), 2**62]))


def test_the_clock_of_the_client_is_a_series(run: Run) -> None:
    series.append_points(
        run,
        builders.attempt(run),
        [MetricPoint(1, {"a": 1.0}, time=99.5), MetricPoint(2, {"a": 1.0}, time=3.0), MetricPoint(3, {"a": 1.0})],
    )
    assert load_curve(run, TIME_METRIC) == [(1, 99.5), (2, 3.0)]
    compact_metric_rows(run.pk, min_rows=1)
    assert load_curve(run, TIME_METRIC) == [(1, 99.5), (2, 3.0)]
    assert series.list_metric_names(run) == ["a"]


def test_invalid_and_long_names_are_repaired(run: Run) -> None:
    series.append_points(run, builders.attempt(run), [MetricPoint(1, {"a\x00\ud800": 1.0, "x" * 400: 2.0})])
    compact_metric_rows(run.pk, min_rows=1)
    assert series.list_metric_names(run) == ["a\ufffd?", "x" * 299 + "…"]


def test_names_of_waiting_and_compacted_points_are_listed(run: Run) -> None:
    log_steps(run, range(3), name="old")
    compact_metric_rows(run.pk, min_rows=1)
    log_steps(run, range(3), name="new", attempt="two")
    assert series.list_metric_names(run) == ["new", "old"]
    assert series.list_metric_names(run, attempt="two") == ["new"]


@pytest.mark.parametrize(
    "point", [MetricPoint(2**63, {"a": 1.0}), MetricPoint(1, {"a": "x"}), MetricPoint(1, {"a": 10**400})]
)  # type: ignore[dict-item]
def test_invalid_steps_and_values_are_refused(run: Run, point: MetricPoint) -> None:
    with pytest.raises(InvalidInputError):
        series.append_points(run, builders.attempt(run), [point])


@pytest.mark.parametrize("is_compacted", [True, False])
def test_five_restarts_show_one_clean_curve(run: Run, is_compacted: bool) -> None:
    for number, start in enumerate([0, 15, 10, 30, 38]):
        log_steps(run, range(start, start + 20), attempt=f"launch-{number}", start=number / 10)
    if is_compacted:
        compact_metric_rows(run.pk, min_rows=1)
    rendered = load_curve(run)
    assert [step for step, _ in rendered] == list(range(58))
    from_attempt = {0: range(0, 10), 2: range(10, 30), 3: range(30, 38), 4: range(38, 58)}
    assert rendered == [(step, step + number / 10) for number, steps in from_attempt.items() for step in steps]
    every = series.load_curves(run, ["loss"], attempt="all")[run.uid]["loss"]
    assert [(piece["number"], len(piece["steps"])) for piece in every] == [(n, 20) for n in range(1, 6)]
    assert len(load_curve(run, attempt="launch-1")) == 20


def test_a_validation_of_the_resumed_step_does_not_cut_the_training_curve(run: Run) -> None:
    log_steps(run, range(1, 21), attempt="one")
    log_steps(run, [10, 20], attempt="one", name="val")
    log_steps(run, [10], attempt="two", name="val", start=0.5)
    log_steps(run, range(11, 13), attempt="two", start=0.5)
    assert load_curve(run)[8:] == [(9, 9.0), (10, 10.0), (11, 11.5), (12, 12.5)]
    assert load_curve(run, "val") == [(10, 10.5)]


def test_a_later_attempts_training_steps_cut_a_metric_that_it_has_not_logged_yet(run: Run) -> None:
    log_steps(run, [10, 20, 30], attempt="one", name="val")
    again = log_steps(run, [15], attempt="two")
    Step.objects.create(run=run, attempt=again, split="train", step=15, samples=1)
    assert load_curve(run, "val") == [(10, 10.0)]
    assert series.load_last_values(run, ["val", "none"]) == {run.uid: {"val": 10.0}}


def test_watched_files_next_to_a_launch_replace_no_curve(run: Run) -> None:
    log_steps(run, [1, 2, 3], attempt="launch")
    Step.objects.create(run=run, attempt=builders.attempt(run, "files"), split="train", step=1, samples=1)
    assert load_curve(run) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_last_values_come_from_the_newest_current_point(run: Run, project: Project) -> None:
    other = builders.run(project, "other")
    log_steps(run, range(9000))
    compact_metric_rows(run.pk)
    log_steps(run, [9000])
    log_steps(other, [3], start=0.25)
    assert series.load_last_values([run, other], ["loss"]) == {run.uid: {"loss": 9000.0}, other.uid: {"loss": 3.25}}


def test_many_names_of_several_runs_take_a_few_queries(run: Run, project: Project) -> None:
    runs = [run, builders.run(project, "b"), builders.run(project, "c")]
    names = [f"m{n}" for n in range(30)]
    for item in runs:
        series.append_points(
            item, builders.attempt(item), [MetricPoint(step, dict.fromkeys(names, 1.0)) for step in range(5)]
        )
        compact_metric_rows(item.pk, min_rows=3)
    with CaptureQueriesContext(connection) as queries:
        read = series.load_curves(runs, names)
    assert len(queries) <= 4 + len(runs)
    assert all(len(read[item.uid][name][0]["steps"]) == 5 for item in runs for name in names)


def downsample(points: PointArrays, shift: int) -> PointArrays:
    return Downsampler().downsample(points, shift)


def build_points(values: list[float], first: int = 0) -> PointArrays:
    return np.arange(first, first + len(values)), np.array(values, float)


VALUES = st.lists(st.floats(allow_infinity=False, width=32), min_size=1, max_size=300)


@given(VALUES, st.integers(-50, 50), st.integers(8, 64))
def test_downsampling_keeps_extremes_and_ends_and_the_limit(values: list[float], first: int, most: int) -> None:
    full = build_points(values, first)
    steps, stored = downsample(full, choose_bucket_shift(first, first + len(values) - 1, most))
    assert len(steps) <= most
    assert steps[0] == full[0][0] and steps[-1] == full[0][-1]
    if not np.isnan(values).all():
        assert np.nanmin(stored) == np.nanmin(values) and np.nanmax(stored) == np.nanmax(values)
    lookup = dict(zip(full[0].tolist(), values, strict=True))
    assert all(
        np.array_equal(lookup[step], value, equal_nan=True) for step, value in zip(steps.tolist(), stored, strict=True)
    )


@given(VALUES, VALUES, st.integers(0, 6))
def test_appended_points_change_the_last_bucket_only(values: list[float], more: list[float], shift: int) -> None:
    before, after = downsample(build_points(values), shift), downsample(build_points(values + more), shift)
    full = (len(values) >> shift) << shift
    for old, new in zip(before, after, strict=True):
        unchanged = np.count_nonzero(before[0] < full)
        assert np.array_equal(old[:unchanged], new[:unchanged], equal_nan=True)


@given(VALUES, st.integers(0, 5))
def test_downsampling_again_equals_downsampling_with_a_wider_bucket(values: list[float], shift: int) -> None:
    wide = downsample(build_points(values), shift + 1)
    again = downsample(downsample(build_points(values), shift), shift + 1)
    assert all(np.array_equal(curve, other, equal_nan=True) for curve, other in zip(wide, again, strict=True))


def test_a_spike_is_kept_by_downsampling_over_attempts(run: Run) -> None:
    attempt = log_steps(run, range(3000))
    series.append_points(run, attempt, [MetricPoint(1234, {"loss": 1e9})])
    log_steps(run, range(2500, 5000), attempt="two")
    compact_metric_rows(run.pk)
    rendered = load_curve(run, max_points=100)
    assert len(rendered) <= 100 and (1234, 1e9) in rendered and rendered[0][0] == 0 and rendered[-1][0] == 4999


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers()), max_size=20), max_size=5))
def test_the_last_value_of_each_step_is_kept_when_points_are_joined(pieces: list[list[tuple[int, int]]]) -> None:
    arrays = [(np.array([s for s, _ in piece], np.int64), np.array([float(v) for _, v in piece])) for piece in pieces]
    steps, values = join_points(arrays)
    expected = {step: float(value) for piece in pieces for step, value in piece}
    assert dict(zip(steps.tolist(), values.tolist(), strict=True)) == expected
    assert steps.tolist() == sorted(expected)
