"""Blocks: packed metric points. A block has up to 4,096 points of one series in step order, each step once.

The blocks of a series never overlap. A point belongs to the block whose range contains its step, so a new value for an
old step rewrites only that block.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from django.db import transaction

from rollouts.models import Block, MetricRow, Series, Step

StepArray = npt.NDArray[np.int64]
ValueArray = npt.NDArray[np.float64]
PointArrays = tuple[StepArray, ValueArray]
SeriesKey = tuple[int, str, str]  # attempt id, step kind, name
MetricRowTuple = tuple[int, str, int, float | None, str]  # attempt id, step kind, step, time, JSON values

MIN_ROWS_TO_COMPACT: Final = 500
MAX_ROWS_PER_TRANSACTION: Final = 2_000
MAX_IDS_PER_QUERY: Final = 500
MAX_BLOCK_POINTS: Final = 4_096
TIME_METRIC: Final = "_time"
METRIC_ROW_COLUMNS: Final = ("attempt", "step_kind", "step", "time", "values")  # of MetricRowTuple
BLOCK_COLUMNS: Final = ("first", "last", "count", "steps", "values")  # arguments of unpack_block


def unpack_block(first: int, last: int, count: int, steps: Any, values: Any) -> PointArrays:
    numbers = np.frombuffer(values, "<f8")
    if len(steps):
        return np.frombuffer(steps, "<i8"), numbers
    return first + np.arange(count, dtype=np.int64) * ((last - first) // max(1, count - 1)), numbers


def pack_block(series: int, steps: StepArray, values: ValueArray) -> Block:
    """`steps` is empty in the block if all strides are equal."""
    first, last = int(steps[0]), int(steps[-1])
    strides = np.diff(steps)
    even = np.all(strides == strides[:1]) and last - first < 2**62
    packed_steps = b"" if even else steps.astype("<i8").tobytes()
    packed_values = values.astype("<f8").tobytes()
    return Block(series_id=series, first=first, last=last, count=len(steps), steps=packed_steps, values=packed_values)


def load_packed_values(step: Step, prefix: str) -> dict[str, float]:
    """Returns the packed values of a step, of the metrics whose names start with `prefix`."""
    packed = Block.objects.filter(
        series__run=step.run_id, series__attempt=step.attempt_id, series__step_kind=step.step_kind,
        series__name__startswith=prefix, first__lte=step.step, last__gte=step.step,
    )  # fmt: skip
    values = {}
    for name, *columns in packed.values_list("series__name", *BLOCK_COLUMNS):
        steps, numbers = unpack_block(*columns)
        at = int(np.searchsorted(steps, step.step))
        if steps[at] == step.step:
            values[name] = float(numbers[at])
    return values


def join_points(pieces: Sequence[PointArrays]) -> PointArrays:
    """Returns the points of several pieces in step order. Of equal steps, the last one is used."""
    if not pieces:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    steps = np.concatenate([piece[0] for piece in pieces])
    values = np.concatenate([piece[1] for piece in pieces])
    if np.all(steps[1:] > steps[:-1]):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(steps[1:] != steps[:-1], True)
    return steps[last], values[last]


def build_points(rows: Iterable[MetricRowTuple], names: set[str] | None = None) -> dict[SeriesKey, PointArrays]:
    """Returns the points of each series from metric rows in order of arrival."""
    columns: dict[SeriesKey, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for attempt, kind, step, time, text in rows:
        values = orjson.loads(text)
        if time is not None:
            values[TIME_METRIC] = time
        for name in values if names is None else names & values.keys():
            steps, numbers = columns[attempt, kind, name]
            steps.append(step)
            value = values[name]
            numbers.append(float("nan") if value is None else float(value))
    return {
        key: join_points([(np.array(steps, "<i8"), np.array(numbers, "<f8"))])
        for key, (steps, numbers) in columns.items()
    }


def compact_metric_rows(run_id: int, *, min_rows: int = MIN_ROWS_TO_COMPACT) -> int:
    """Packs the run's metric rows into blocks if there are `min_rows` or more. Returns the number of packed rows.

    Each transaction writes blocks and removes their rows, so it can be killed and repeated at any time.
    """
    total = 0
    while count := compact_oldest_rows(run_id, min_rows):
        total += count
    return total


@transaction.atomic
def compact_oldest_rows(run_id: int, min_rows: int) -> int:
    # The lock makes a second compaction of the run wait. It then does not find these rows any more.
    oldest = MetricRow.objects.select_for_update().filter(run=run_id).order_by("pk")[:MAX_ROWS_PER_TRANSACTION]
    rows = list(oldest.values_list("pk", *METRIC_ROW_COLUMNS))
    if len(rows) < max(min_rows, 1):
        return 0
    merge_into_blocks(run_id, build_points(row[1:] for row in rows))
    # By id: another transaction may commit rows with smaller ids in the meantime.
    ids = [row[0] for row in rows]
    for start in range(0, len(ids), MAX_IDS_PER_QUERY):
        MetricRow.objects.filter(pk__in=ids[start : start + MAX_IDS_PER_QUERY]).delete()
    return len(rows)


def merge_into_blocks(run_id: int, points: dict[SeriesKey, PointArrays]) -> None:
    """Adds points to the run's blocks. Rewrites only the blocks whose range contains them."""
    series = get_or_create_series(run_id, points)
    blocks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for series_id, first, pk in Block.objects.filter(series__run=run_id).values_list("series", "first", "pk"):
        blocks[series_id].append((first, pk))
    changes: list[tuple[int, int | None, PointArrays]] = []
    for key, (steps, values) in points.items():
        for block, mask in assign_blocks(sorted(blocks[series[key]]), steps):
            changes.append((series[key], block, (steps[mask], values[mask])))
    rewrite_blocks(changes)


def get_or_create_series(run_id: int, keys: Iterable[SeriesKey]) -> dict[SeriesKey, int]:
    """Returns the ids of the series with these keys."""
    rows = Series.objects.filter(run=run_id).values_list("attempt", "step_kind", "name", "pk")
    known = {(attempt, kind, name): pk for attempt, kind, name, pk in rows}
    missing = [key for key in keys if key not in known]
    new = [Series(run_id=run_id, attempt_id=attempt, step_kind=kind, name=name) for attempt, kind, name in missing]
    for key, created in zip(missing, Series.objects.bulk_create(new, batch_size=500), strict=True):
        known[key] = created.pk
    return known


def assign_blocks(blocks: list[tuple[int, int]], steps: StepArray) -> list[tuple[int | None, npt.NDArray[np.bool_]]]:
    """Returns (block id or None, mask of its steps). `blocks` are sorted (first step, id)."""
    if not blocks:
        return [(None, np.ones(len(steps), bool))]
    at = np.searchsorted([first for first, _ in blocks], steps, side="right") - 1
    at = np.maximum(at, 0)
    return [(blocks[number][1], at == number) for number in np.unique(at)]


def rewrite_blocks(changes: Sequence[tuple[int, int | None, PointArrays]]) -> None:
    """Adds points to blocks, given as (series id, block id or None, points)."""
    old = [pk for _, pk, _ in changes if pk is not None]
    unpacked: dict[int, PointArrays] = {}
    for start in range(0, len(old), 500):
        rows = Block.objects.filter(pk__in=old[start : start + 500])
        unpacked.update({pk: unpack_block(*columns) for pk, *columns in rows.values_list("pk", *BLOCK_COLUMNS)})
        rows.delete()
    new: list[Block] = []
    for series, pk, points in changes:
        steps, values = join_points([points] if pk is None else [unpacked[pk], points])
        for start in range(0, len(steps), MAX_BLOCK_POINTS):
            part = slice(start, start + MAX_BLOCK_POINTS)
            new.append(pack_block(series, steps[part], values[part]))
    Block.objects.bulk_create(new, batch_size=100)
