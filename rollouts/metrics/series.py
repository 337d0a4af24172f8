"""Metrics: points are stored as rows, compacted into blocks, and returned as curves over steps or over time.

The order is attempt, step, arrival, never a client's clock. The clock is stored as the series `_time`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
import orjson
from django.db.models import Count, F, OuterRef, QuerySet, Subquery, Window
from django.db.models.functions import RowNumber

from rollouts.errors import InvalidInputError
from rollouts.lib import MAX_INT64
from rollouts.metrics import blocks, guided_steps, sample_curves
from rollouts.metrics.attempts import AttemptIndex, AttemptPoints
from rollouts.metrics.blocks import BLOCK_COLUMNS, METRIC_ROW_COLUMNS, TIME_METRIC, MetricRowTuple, PointArrays
from rollouts.metrics.downsample import Downsampler, choose_bucket_shift
from rollouts.metrics.sample_curves import AttemptCurveKey
from rollouts.models import Attempt, Block, MetricRow, Run, Series, Step
from rollouts.samples import MetricPoint

MAX_NAME_CHARS: Final = 300
SECONDS_PER_HOUR: Final = 3600.0
NEWEST_ROWS: Final = 3  # of a run, read for the names of its metrics
GENERATED_COUNT_METRIC: Final = "rolloutdeck/generated"  # may arrive before or after the step's samples

CurveKey = tuple[int, str, str]  # run id, name, step kind
StepSeconds = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # steps and their times
KeyedPoints = list[tuple[AttemptCurveKey, PointArrays]]


class Curve(TypedDict):
    """Points of one attempt in step order. A value is None if the trainer logged NaN or an infinity."""

    attempt: str
    number: int
    step_kind: str
    steps: list[int]
    values: list[float | None]


Curves = Mapping[str, Sequence[Curve]]  # by name


def append_points(run: Run, attempt: Attempt, points: Iterable[MetricPoint]) -> int:
    """Stores the points of some steps. Returns the number of steps. Of several values for a step, the last is used.

    Raises InvalidInputError for a step that does not fit 64 bits or a value that is not a number.
    """
    steps, rows = list(points), []
    for point in steps:
        step, time = check_step(point.step), None if point.time is None else finite_or_none(point.time)
        values = orjson.dumps({clean_name(name): to_json(name, value) for name, value in point.values.items()}).decode()
        row = MetricRow(run=run, attempt=attempt, step_kind=point.step_kind, step=step, time=time, values=values)
        rows.append(row)
    MetricRow.objects.bulk_create(rows, batch_size=500)
    for point in steps:
        if (count := to_count(point.values.get(GENERATED_COUNT_METRIC))) is not None:
            train_steps = Step.objects.filter(run=run, attempt=attempt, split="train", step_kind=point.step_kind)
            train_steps.filter(step=point.step).update(generated=count)
    guided_steps.store_guidance(run, attempt, steps)
    return len(rows)


def check_step(step: int) -> int:
    if not isinstance(step, int) or abs(step) > MAX_INT64:
        raise InvalidInputError(f"A metric's step must be a whole number below 2^63, not {str(step)[:40]}.", "step")
    return step


def finite_or_none(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def clean_name(name: str) -> str:
    """Returns the name with characters and a length that every database can store."""
    name = name.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"


def to_json(name: str, value: float | None) -> float | str | None:
    """Returns None for NaN, and `Infinity` and `-Infinity` as strings."""
    try:
        number = float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"The value of metric `{name[:80]}` is not a number.", "values") from None
    if np.isnan(number):
        return None
    return number if np.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


def to_count(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**31 else None


def find_generated_count(step: Step) -> int | None:
    """Returns how many samples the trainer generated for a step, with those that it filtered out and did not record.

    The metric may have arrived before the step, and may be packed already. None if it is unknown.
    """
    if step.split != "train":
        return None
    rows = MetricRow.objects.filter(run=step.run_id, attempt=step.attempt_id, step_kind=step.step_kind, step=step.step)
    texts = rows.filter(values__contains=GENERATED_COUNT_METRIC).order_by("-pk").values_list("values", flat=True)
    counts = (to_count(orjson.loads(text).get(GENERATED_COUNT_METRIC)) for text in texts)
    count = next((count for count in counts if count is not None), step.generated)
    if count is not None:
        return count
    return to_count(blocks.load_packed_values(step, GENERATED_COUNT_METRIC).get(GENERATED_COUNT_METRIC))


def list_metric_names(run: Run, attempt: str = "") -> list[str]:
    """Returns the names of the run's metrics, sorted. With the key of an attempt, only those of the attempt."""
    series, rows = Series.objects.filter(run=run), MetricRow.objects.filter(run=run)
    if attempt:
        series, rows = series.filter(attempt__key=attempt), rows.filter(attempt__key=attempt)
    return merge_names(series, rows, sample_curves.list_sample_curve_names(run, attempt))


def list_recent_metric_names(runs: Sequence[Run]) -> list[str]:
    """Returns the sorted names of metrics of many runs, from their blocks, newest rows and samples."""
    newest = Window(RowNumber(), partition_by=[F("run")], order_by=F("pk").desc())
    rows = MetricRow.objects.filter(run__in=runs).annotate(newest=newest).filter(newest__lte=NEWEST_ROWS)
    tables = sample_curves.load_last_sample_curves(Run.objects.filter(pk__in=[run.pk for run in runs]))
    names = {name for table in tables.values() for name, _, _ in table}
    return merge_names(Series.objects.filter(run__in=runs), rows, names)


def merge_names(series: QuerySet[Series], rows: QuerySet[MetricRow], sample_curve_names: set[str]) -> list[str]:
    names = sample_curve_names.union(series.order_by().values_list("name", flat=True).distinct())
    for text in rows.values_list("values", flat=True):
        names |= orjson.loads(text).keys()
    return sorted(names - {TIME_METRIC})


def load_curves(
    runs: Run | Sequence[Run], names: Sequence[str], *, max_points: int = 0, attempt: str = "current"
) -> dict[str, dict[str, list[Curve]]]:
    """Returns curves by run uid and name: one per attempt that has points, in order.

    `attempt` is `current` (a later attempt replaces an earlier one from its first step on), `all` (each by itself) or
    the key of an attempt. With `max_points` > 0, larger curves are downsampled. The extremes of each bucket remain.
    """
    uids = map_uids(runs)
    curves: dict[str, dict[str, list[Curve]]] = {uid: {name: [] for name in names} for uid in uids.values()}
    attempts, downsampler = AttemptIndex.load(list(uids)), Downsampler()
    for (run, name, kind), pieces in sorted(load_points(uids, names, newest=False).items()):
        shown = downsample_pieces(attempts.select(pieces, kind, attempt), max_points, downsampler)
        curves[uids[run]][name] += [build_curve(attempts, pk, kind, points) for pk, points in shown if len(points[0])]
    return curves


def load_last_values(runs: Run | Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Returns the newest current value of each metric that has points, by run uid and name."""
    uids = map_uids(runs)
    values: dict[str, dict[str, float | None]] = {uid: {} for uid in uids.values()}
    attempts = AttemptIndex.load(list(uids))
    for (run, name, kind), pieces in sorted(load_points(uids, names, newest=True).items()):
        current = [points for _, (steps, points) in attempts.select(pieces, kind, "current") if len(steps)]
        if current:
            values[uids[run]][name] = finite_or_none(current[-1][-1])
    return values


def map_uids(runs: Run | Sequence[Run]) -> dict[int, str]:
    return {run.pk: run.uid for run in ([runs] if isinstance(runs, Run) else runs)}


def load_points(run_ids: Iterable[int], names: Sequence[str], *, newest: bool) -> dict[CurveKey, AttemptPoints]:
    """Returns points by run, name and step kind, one piece per attempt. With `newest`, at least the newest points.

    Rows are read before blocks: a compaction in between duplicates points, and `join_points` removes the duplicates.
    """
    pieces: dict[CurveKey, dict[int, list[PointArrays]]] = defaultdict(lambda: defaultdict(list))
    row_points = load_newest_row_points(run_ids, names) if newest else load_row_points(run_ids, set(names))
    sample_points = sample_curves.load_sample_curve_points(run_ids, names, newest=newest)
    block_points = load_block_points(run_ids, names, newest)
    for (run, name, kind, attempt), points in chain(sample_points, block_points, row_points):
        pieces[run, name, kind][attempt].append(points)
    return {key: [(pk, blocks.join_points(parts)) for pk, parts in own.items()] for key, own in pieces.items()}


def load_block_points(run_ids: Iterable[int], names: Sequence[str], newest: bool) -> KeyedPoints:
    series = Series.objects.filter(run__in=run_ids, name__in=names)
    packed = Block.objects.filter(series__in=series)
    if newest:
        own_blocks = Block.objects.filter(series=OuterRef("pk")).order_by("-first").values("pk")[:1]
        last = series.annotate(newest=Subquery(own_blocks)).values_list("newest", flat=True)
        packed = Block.objects.filter(pk__in=list(last))
    keys = {row[0]: row[1:] for row in series.values_list("pk", "run", "name", "step_kind", "attempt")}
    rows = sorted(packed.values_list("series", *BLOCK_COLUMNS), key=itemgetter(0, 1))
    return [(keys[pk], blocks.unpack_block(*columns)) for pk, *columns in rows if pk in keys]


def build_run_points(run: int, rows: Iterable[MetricRowTuple], names: set[str]) -> KeyedPoints:
    points_by_series = blocks.build_points(rows, names)
    return [((run, name, kind, attempt), points) for (attempt, kind, name), points in points_by_series.items()]


def load_row_points(run_ids: Iterable[int], names: set[str]) -> KeyedPoints:
    result: KeyedPoints = []
    for run in run_ids:
        rows = MetricRow.objects.filter(run=run).order_by("pk")
        result += build_run_points(run, rows.values_list(*METRIC_ROW_COLUMNS), names)
    return result


def load_newest_row_points(run_ids: Iterable[int], names: Sequence[str]) -> KeyedPoints:
    """Returns the newest point of each metric, or all points of a run with several attempts. Two queries per name."""
    counts = Attempt.objects.filter(run__in=run_ids).values_list("run").annotate(Count("pk")).order_by()
    several = [run for run, count in counts if count > 1]
    newest = Window(RowNumber(), partition_by=[F("run"), F("step_kind")], order_by=[F("step").desc(), F("pk").desc()])
    columns = ("run", *METRIC_ROW_COLUMNS)
    result: KeyedPoints = []
    for name in names:
        rows = MetricRow.objects.filter(run__in=run_ids, values__contains=orjson.dumps(name).decode() + ":")
        last = rows.exclude(run__in=several).annotate(newest=newest).filter(newest=1)
        by_run: dict[int, list[MetricRowTuple]] = defaultdict(list)
        every = rows.filter(run__in=several).order_by("pk")
        for run, *row in chain(last.values_list(*columns), every.values_list(*columns)):
            by_run[run].append(tuple(row))
        for run, own in by_run.items():
            result += build_run_points(run, own, {name})
    return result


def downsample_pieces(pieces: AttemptPoints, max_points: int, downsampler: Downsampler) -> AttemptPoints:
    """Downsamples all pieces with the same bucket width if they have more than `max_points` points in total."""
    spans = [steps for _, (steps, _) in pieces if len(steps)]
    if max_points <= 0 or sum(map(len, spans)) <= max_points:
        return pieces
    first, last = min(int(steps[0]) for steps in spans), max(int(steps[-1]) for steps in spans)
    shift = choose_bucket_shift(first, last, max_points)
    return [(pk, downsampler.downsample(points, shift)) for pk, points in pieces]


def build_curve(attempts: AttemptIndex, pk: int, kind: str, points: PointArrays) -> Curve:
    steps, numbers = points
    values: list[float | None] = numbers.tolist()
    for at in np.flatnonzero(~np.isfinite(numbers)):
        values[at] = None
    key, number = attempts.key(pk), attempts.number(pk)
    return {"attempt": key, "number": number, "step_kind": kind, "steps": steps.tolist(), "values": values}


def add_time_axis(runs: Sequence[Run], curves: Mapping[str, Curves]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns the curves by run uid and name, with `hours` in addition to `steps`.

    The time of a point is interpolated between logged times. Before the first and after the last one it is theirs. An
    attempt without times, such as watched files, uses those of the run's other attempts. A curve without any logged
    time of its run and step kind is left out.
    """
    clocks = load_curves(runs, [TIME_METRIC], attempt="all")
    return {run.uid: add_hours(clocks[run.uid][TIME_METRIC], curves[run.uid]) for run in runs}


def add_hours(clock: Sequence[Curve], curves: Curves) -> dict[str, list[dict[str, Any]]]:
    times: dict[tuple[str, str], StepSeconds] = {}
    for piece in clock:
        known = [pair for pair in zip(piece["steps"], piece["values"], strict=True) if pair[1] is not None]
        if known:
            steps, seconds = np.array(known, np.float64).T
            # If the clock was set back, the line would go to the left.
            times[piece["attempt"], piece["step_kind"]] = steps, np.maximum.accumulate(seconds)
    start = min((float(seconds.min()) for _, seconds in times.values()), default=0.0)
    kinds = {kind for _, kind in times}
    shared = {kind: join_times([own for (_, other), own in times.items() if other == kind]) for kind in kinds}
    result: dict[str, list[dict[str, Any]]] = {name: [] for name in curves}
    for name, pieces in curves.items():
        for curve in pieces:
            if axis := times.get((curve["attempt"], curve["step_kind"]), shared.get(curve["step_kind"])):
                hours = np.round((np.interp(curve["steps"], *axis) - start) / SECONDS_PER_HOUR, 5)
                result[name].append({**curve, "hours": hours.tolist()})
    return result


def join_times(pieces: Sequence[StepSeconds]) -> StepSeconds:
    """Returns the times of several attempts as one. Of a step that two of them have, it is that of the later one."""
    steps, seconds = (np.concatenate(arrays)[::-1] for arrays in zip(*pieces, strict=True))
    steps, places = np.unique(steps, return_index=True)
    return steps, np.maximum.accumulate(seconds[places])
