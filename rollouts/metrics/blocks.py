"""Metric points packed: a block holds up to 4,096 points of one series in step order, each step once.

Blocks of a series never overlap; a point goes to the block whose range it falls into, so an upsert of an old step
rewrites that block alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from django.db import transaction

from rollouts.models import Block, MetricRow, Series

StepArray = npt.NDArray[np.int64]
ValueArray = npt.NDArray[np.float64]
PointArrays = tuple[StepArray, ValueArray]
Key = tuple[int, str, str]  # attempt id, step kind, name
MetricRowTuple = tuple[int, str, int, float | None, str]  # attempt id, step kind, step, time, JSON values

MIN_ROWS_TO_COMPACT: Final = 500
MOST_ROWS: Final = 2_000
MAX_BLOCK_POINTS: Final = 4_096
TIME_METRIC: Final = "_time"

NOTHING: PointArrays = (np.empty(0, np.int64), np.empty(0, np.float64))


# What a block's points are unpacked from.
BLOCK_COLUMNS: Final = ("first", "last", "count", "steps", "values")


def unpack_block(first: int, last: int, count: int, steps: Any, values: Any) -> PointArrays:
    """Arrays of a block, from its columns as in `PACKED`."""
    numbers = np.frombuffer(values, "<f8")
    if len(steps):
        return np.frombuffer(steps, "<i8"), numbers
    return first + np.arange(count, dtype=np.int64) * ((last - first) // max(1, count - 1)), numbers


def pack(steps: StepArray) -> bytes:
    """Little-endian int64, or nothing where all strides are equal."""
    strides = np.diff(steps)
    even = np.all(strides == strides[:1]) and int(steps[-1]) - int(steps[0]) < 2**62
    return b"" if even else steps.astype("<i8").tobytes()


def join_points(pieces: Sequence[PointArrays]) -> PointArrays:
    """Points of several pieces in step order; of equal steps the one that stands last wins."""
    if not pieces:
        return NOTHING
    steps = np.concatenate([piece[0] for piece in pieces])
    values = np.concatenate([piece[1] for piece in pieces])
    if np.all(steps[1:] > steps[:-1]):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(steps[1:] != steps[:-1], True)
    return steps[last], values[last]


def build_points(rows: Iterable[MetricRowTuple], names: set[str] | None = None) -> dict[Key, PointArrays]:
    """Points by series of rows in order of arrival."""
    found: dict[Key, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for attempt, kind, step, time, text in rows:
        values = orjson.loads(text)
        if time is not None:
            values[TIME_METRIC] = time
        for name in values if names is None else names & values.keys():
            steps, numbers = found[attempt, kind, name]
            steps.append(step)
            value = values[name]
            numbers.append(float("nan") if value is None else float(value))
    return {
        key: join_points([(np.array(steps, "<i8"), np.array(numbers, "<f8"))])
        for key, (steps, numbers) in found.items()
    }


def compact_metric_rows(run_id: int, *, least: int = MIN_ROWS_TO_COMPACT) -> int:
    """Packs the run's waiting rows into blocks once there are `least` of them; returns how many it packed.

    Each portion is one transaction that writes the blocks and removes the rows, so a kill loses nothing, and a second
    fold finds nothing to do.
    """
    folded = 0
    while portion := fold_portion(run_id, least):
        folded += portion
    return folded


@transaction.atomic
def fold_portion(run_id: int, least: int) -> int:
    # The lock makes folds of one run queue: each starts at the oldest row. A second one then finds those rows gone.
    waiting = MetricRow.objects.select_for_update().filter(run=run_id).order_by("pk")[:MOST_ROWS]
    rows = list(waiting.values_list("pk", "attempt", "step_kind", "step", "time", "values"))
    if len(rows) < max(least, 1):
        return 0
    write(run_id, build_points(row[1:] for row in rows))
    MetricRow.objects.filter(run=run_id, pk__lte=rows[-1][0]).delete()
    return len(rows)


def write(run_id: int, points: dict[Key, PointArrays]) -> None:
    """Merges points into the run's blocks; only the blocks that they fall into are rewritten."""
    series = series_of(run_id, points)
    blocks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for owner, first, pk in Block.objects.filter(series__run=run_id).values_list("series", "first", "pk"):
        blocks[owner].append((first, pk))
    changes: list[tuple[int, int | None, PointArrays]] = []
    for key, (steps, values) in points.items():
        heads = sorted(blocks[series[key]])
        for head, chosen in owners(heads, steps):
            changes.append((series[key], head, (steps[chosen], values[chosen])))
    rewrite_blocks(changes)


def series_of(run_id: int, keys: Iterable[Key]) -> dict[Key, int]:
    """Ids of the series with these keys, made where missing."""
    known = {
        (attempt, kind, name): pk
        for pk, attempt, kind, name in Series.objects.filter(run=run_id).values_list(
            "pk", "attempt", "step_kind", "name"
        )
    }
    missing = [key for key in keys if key not in known]
    new = [Series(run_id=run_id, attempt_id=attempt, step_kind=kind, name=name) for attempt, kind, name in missing]
    for key, made in zip(missing, Series.objects.bulk_create(new, batch_size=500), strict=True):
        known[key] = made.pk
    return known


def owners(heads: Sequence[tuple[int, int]], steps: StepArray) -> Iterable[tuple[int | None, npt.NDArray[np.bool_]]]:
    """(block id, mask of the steps that belong to it); the id is None where the series has no block yet."""
    if not heads:
        return [(None, np.ones(len(steps), bool))]
    at = np.searchsorted([first for first, _ in heads], steps, side="right") - 1
    at = np.maximum(at, 0)
    return [(heads[number][1], at == number) for number in np.unique(at)]


def rewrite_blocks(changes: Sequence[tuple[int, int | None, PointArrays]]) -> None:
    old = [pk for _, pk, _ in changes if pk is not None]
    packed: dict[int, PointArrays] = {}
    for start in range(0, len(old), 500):
        chosen = Block.objects.filter(pk__in=old[start : start + 500])
        packed.update({pk: unpack_block(*columns) for pk, *columns in chosen.values_list("pk", *BLOCK_COLUMNS)})
        chosen.delete()
    new = [
        made
        for series, pk, points in changes
        for made in split(series, join_points([packed[pk], points] if pk is not None else [points]))
    ]
    Block.objects.bulk_create(new, batch_size=100)


def split(series: int, points: PointArrays) -> list[Block]:
    """Blocks of at most `BLOCK_POINTS` points."""
    return [
        block(series, points[0][at : at + MAX_BLOCK_POINTS], points[1][at : at + MAX_BLOCK_POINTS])
        for at in range(0, len(points[0]), MAX_BLOCK_POINTS)
    ]


def block(series: int, steps: StepArray, values: ValueArray) -> Block:
    return Block(
        series_id=series,
        first=int(steps[0]),
        last=int(steps[-1]),
        count=len(steps),
        steps=pack(steps),
        values=values.astype("<f8").tobytes(),
    )
