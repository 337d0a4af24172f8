"""Metrics: points come in as rows, are folded into packed blocks, and go out as curves over attempts.

Order is attempt, step, arrival, never a client's clock; the clock is kept as the series `_time`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final, TypedDict

import numpy as np
import orjson
from django.db.models import Count, F, OuterRef, Subquery, Window
from django.db.models.functions import RowNumber

from rollouts.errors import InvalidInputError
from rollouts.metrics import generated_count, sample_curves
from rollouts.metrics.attempts import AttemptIndex, AttemptPoints
from rollouts.metrics.blocks import (
    BLOCK_COLUMNS,
    TIME_METRIC,
    MetricRowTuple,
    PointArrays,
    build_points,
    join_points,
    unpack_block,
)
from rollouts.metrics.downsample import Downsampler, choose_bucket_shift
from rollouts.models import Attempt, Block, MetricRow, Run, Series
from rollouts.samples import MetricPoint

MOST_NAME: Final = 300
BIGGEST: Final = 2**63 - 1
NEWEST_ROWS: Final = 3  # of a run, read for the names of its metrics


class Curve(TypedDict):
    """Points of one attempt in step order; a value is None where the trainer logged NaN or an infinity."""

    attempt: str
    number: int
    step_kind: str
    steps: list[int]
    values: list[float | None]


def append_points(run: Run, attempt: Attempt, points: Iterable[MetricPoint]) -> int:
    """Keeps the points of some steps; returns how many steps. A step told twice has each name's last value.

    Raises BadInput for a step that does not fit 64 bits or a value that is no number.
    """
    known = list(points)
    rows = [
        MetricRow(
            run=run,
            attempt=attempt,
            step_kind=point.step_kind,
            step=whole(point.step),
            time=None if point.time is None else finite(point.time),
            values=orjson.dumps({clean(name): stored(name, value) for name, value in point.values.items()}).decode(),
        )
        for point in known
    ]
    MetricRow.objects.bulk_create(rows, batch_size=500)
    generated_count.update_generated_counts(run, attempt, known)
    return len(rows)


def whole(step: int) -> int:
    if not isinstance(step, int) or abs(step) > BIGGEST:
        raise InvalidInputError(f"A metric's step must be a whole number below 2^63, not {str(step)[:40]}.", "step")
    return step


def finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def clean(name: str) -> str:
    """The name as every database can hold it."""
    name = name.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…"


def stored(name: str, value: float | None) -> float | str | None:
    """As JSON holds it: None for NaN, `Infinity` and `-Infinity` as strings."""
    try:
        number = float("nan") if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"The value of metric `{name[:80]}` is not a number.", "values") from None
    if np.isnan(number):
        return None
    return number if np.isfinite(number) else "Infinity" if number > 0 else "-Infinity"


def list_metric_names(run: Run, attempt: str = "") -> list[str]:
    """Names of the run's metrics, sorted; of one attempt only when its key is given."""
    packed, waiting = Series.objects.filter(run=run), MetricRow.objects.filter(run=run)
    if attempt:
        packed, waiting = packed.filter(attempt__key=attempt), waiting.filter(attempt__key=attempt)
    found = set(packed.values_list("name", flat=True).distinct())
    for text in waiting.values_list("values", flat=True):
        found |= orjson.loads(text).keys()
    return sorted((found | sample_curves.list_sample_curve_names(run, attempt)) - {TIME_METRIC})


def load_curves(
    runs: Run | Sequence[Run], names: Sequence[str], *, max_points: int = 0, attempt: str = "current"
) -> dict[str, dict[str, list[Curve]]]:
    """Curves by run uid and name: one per attempt that has points, in order.

    `attempt` is `current` (a later attempt replaces an earlier one from its first step on), `all` (each by itself) or
    one attempt's key. `max_points` > 0 thins what has more, keeping each bucket's extremes.
    """
    uids = uids_of(runs)
    out: dict[str, dict[str, list[Curve]]] = {uid: {name: [] for name in names} for uid in uids.values()}
    attempts, thinner = AttemptIndex.of(list(uids)), Downsampler()
    for (run, name, kind), pieces in sorted(gather(uids, names, newest=False).items()):
        shown = thinned(attempts.choose(pieces, kind, attempt), max_points, thinner)
        out[uids[run]][name] += [curve(attempts, pk, kind, points) for pk, points in shown if len(points[0])]
    return out


def load_last_values(runs: Run | Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """The newest current value of each metric, by run uid and name; a metric without points is left out."""
    uids = uids_of(runs)
    out: dict[str, dict[str, float | None]] = {uid: {} for uid in uids.values()}
    attempts = AttemptIndex.of(list(uids))
    for (run, name, kind), pieces in sorted(gather(uids, names, newest=True).items()):
        shown = [values for _, (steps, values) in attempts.choose(pieces, kind, "current") if len(steps)]
        if shown:
            out[uids[run]][name] = finite(shown[-1][-1])
    return out


def uids_of(runs: Run | Sequence[Run]) -> dict[int, str]:
    return {run.pk: run.uid for run in ([runs] if isinstance(runs, Run) else runs)}


Place = tuple[int, str, str]  # run id, name, step kind
Whose = tuple[int, str, str, int]  # the same and the attempt's id


def gather(run_ids: Iterable[int], names: Sequence[str], *, newest: bool) -> dict[Place, AttemptPoints]:
    """Points by run, name and step kind, a piece per attempt; of the newest block only where that is enough.

    The waiting rows are read before the blocks, so a fold in between doubles points, which joining undoes.
    """
    found: dict[Place, dict[int, list[PointArrays]]] = defaultdict(lambda: defaultdict(list))
    waiting = newest_points(run_ids, names) if newest else waiting_points(run_ids, set(names))
    shown = sample_curves.load_sample_curve_points(run_ids, names, newest=newest)
    for (run, name, kind, attempt), points in [*shown, *packed_points(run_ids, names, newest), *waiting]:
        found[run, name, kind][attempt].append(points)
    return {place: [(pk, join_points(pieces)) for pk, pieces in by.items()] for place, by in found.items()}


def packed_points(run_ids: Iterable[int], names: Sequence[str], newest: bool) -> list[tuple[Whose, PointArrays]]:
    """What stands in blocks, the blocks of a series in step order."""
    series = Series.objects.filter(run__in=run_ids, name__in=names)
    of_series = Block.objects.filter(series=OuterRef("pk")).order_by("-first").values("pk")[:1]
    blocks = Block.objects.filter(series__in=series)
    if newest:
        last = series.annotate(newest=Subquery(of_series)).values_list("newest", flat=True)
        blocks = Block.objects.filter(pk__in=list(last))
    owners = {row[0]: row[1:] for row in series.values_list("pk", "run", "name", "step_kind", "attempt")}
    rows = sorted(blocks.values_list("series", *BLOCK_COLUMNS), key=itemgetter(0, 1))
    return [(owners[owner], unpack_block(*columns)) for owner, *columns in rows if owner in owners]


def waiting_points(run_ids: Iterable[int], names: set[str]) -> list[tuple[Whose, PointArrays]]:
    """What is not folded yet."""
    out: list[tuple[Whose, PointArrays]] = []
    for run in run_ids:
        rows = MetricRow.objects.filter(run=run).order_by("pk")
        points = build_points(rows.values_list("attempt", "step_kind", "step", "time", "values"), names)
        out += [((run, name, kind, attempt), found) for (attempt, kind, name), found in points.items()]
    return out


def newest_points(run_ids: Iterable[int], names: Sequence[str]) -> list[tuple[Whose, PointArrays]]:
    """What is not folded yet: of runs with one attempt only the newest point of each metric. A few queries a name."""
    told = Attempt.objects.filter(run__in=run_ids).values_list("run").annotate(Count("pk")).order_by()
    several = [run for run, count in told if count > 1]
    newest = Window(RowNumber(), partition_by=[F("run"), F("step_kind")], order_by=[F("step").desc(), F("pk").desc()])
    out: list[tuple[Whose, PointArrays]] = []
    for name in names:
        holding = MetricRow.objects.filter(run__in=run_ids, values__contains=orjson.dumps(name).decode() + ":")
        last = holding.exclude(run__in=several).annotate(newest=newest).filter(newest=1)
        columns = ("run", "attempt", "step_kind", "step", "time", "values")
        rows = [*last.values_list(*columns), *holding.filter(run__in=several).order_by("pk").values_list(*columns)]
        by_run: dict[int, list[MetricRowTuple]] = defaultdict(list)
        for run, *row in rows:
            by_run[run].append(tuple(row))
        for run, found in by_run.items():
            out += [
                ((run, of, kind, attempt), points)
                for (attempt, kind, of), points in build_points(found, {name}).items()
            ]
    return out


def list_recent_metric_names(runs: Sequence[Run]) -> list[str]:
    """Names of metrics of many runs, sorted: packed ones, those of the newest rows, those of samples."""
    newest = Window(RowNumber(), partition_by=[F("run")], order_by=F("pk").desc())
    found = set(Series.objects.filter(run__in=runs).order_by().values_list("name", flat=True).distinct())
    waiting = MetricRow.objects.filter(run__in=runs).annotate(newest=newest).filter(newest__lte=NEWEST_ROWS)
    for text in waiting.values_list("values", flat=True):
        found |= orjson.loads(text).keys()
    shown = sample_curves.load_last_sample_curves(Run.objects.filter(pk__in=[run.pk for run in runs]))
    return sorted((found | {name for table in shown.values() for name, _, _ in table}) - {TIME_METRIC})


def thinned(pieces: AttemptPoints, most: int, thinner: Downsampler) -> AttemptPoints:
    """The pieces in buckets of one width, where together they have more than `most` points."""
    spans = [steps for _, (steps, _) in pieces if len(steps)]
    if most <= 0 or sum(map(len, spans)) <= most:
        return pieces
    shift = choose_bucket_shift(min(int(steps[0]) for steps in spans), max(int(steps[-1]) for steps in spans), most)
    return [(pk, thinner.thin(points, shift)) for pk, points in pieces]


def curve(attempts: AttemptIndex, pk: int, kind: str, points: PointArrays) -> Curve:
    steps, values = points
    shown: list[float | None] = values.tolist()
    for at in np.flatnonzero(~np.isfinite(values)):
        shown[at] = None
    return {
        "attempt": attempts.key(pk),
        "number": attempts.number(pk),
        "step_kind": kind,
        "steps": steps.tolist(),
        "values": shown,
    }
