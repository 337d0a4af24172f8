"""Curves computed from samples, in addition to the metrics that the trainer logs, such as `samples/eval/correct`.

They are computed from the statistics of the steps and not stored. Shares are from 0 to 1, of the samples or of the
groups of a step. A value that the run does not record has no curve, nor has a text property that never occurs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import orjson
from django.db.models import Avg, BigIntegerField, Case, F, Max, OuterRef, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Cast

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.ingest import find_copied_steps
from rollouts.lib import CacheSize, cached_newest
from rollouts.metrics.blocks import PointArrays, ValueArray
from rollouts.models import BlindQueues, Rescore, Run, Step
from rollouts.samples import PROPERTY_CATALOG, TEXT_PROPERTY_BITS

PREFIX: Final = "samples/"
EVAL_PREFIX: Final = "samples/eval/"
PARTS_PREFIX: Final = "parts/"
RESCORES_PREFIX: Final = "rescores/"
RESCORE_METRICS: Final = (PREFIX + RESCORES_PREFIX, EVAL_PREFIX + RESCORES_PREFIX)
MEAN_FIELDS: Final = ("score_mean", "score_p10", "score_p50", "score_p90", "length_mean", "staleness_mean")
NUMBER_FIELDS: Final = (*MEAN_FIELDS, "staleness_max", "samples", "groups", "truncated", "zero_variance_groups")
MAX_SPARKLINE_POINTS = 32
NEW_PROPERTIES: Final = ("answer-mismatch", "garbled")  # unknown in steps without `properties`

CurveTable = dict[tuple[str, str, int], PointArrays]  # by name, step kind, attempt id
AttemptCurveKey = tuple[int, str, str, int]  # run id, name, step kind, attempt id


class StepStatistics(NamedTuple):
    """The fields of a step that curves are computed from. `counts`, `parts` and `rescores` are JSON text."""

    run: int
    attempt: int
    split: str
    step_kind: str
    step: int
    samples: int
    groups: int
    score_mean: float | None
    score_p10: float | None
    score_p50: float | None
    score_p90: float | None
    length_mean: float | None
    staleness_mean: float | None
    staleness_max: int | None
    truncated: int | None
    zero_variance_groups: int
    properties: int | None
    counts: str
    parts: str
    rescores: str | None


def select_readable_metrics(names: Iterable[str], blind: BlindQueues) -> list[str]:
    """Returns the names without those of re-scores if the reader reviews a blind queue."""
    return [name for name in names if not (blind.queues and name.startswith(RESCORE_METRICS))]


def list_sample_curve_names(run: Run, attempt: str = "") -> set[str]:
    """Returns the names of the run's curves. With the key of an attempt, only those of the attempt."""
    table = load_curve_table(run.pk, run.created_at, run.version)
    own = set(run.attempts.filter(key=attempt).values_list("pk", flat=True)) if attempt else None
    return {name for name, _, attempt_id in table if own is None or attempt_id in own}


def load_sample_curve_points(
    run_ids: Iterable[int], names: Collection[str], *, newest: bool = False
) -> list[tuple[AttemptCurveKey, PointArrays]]:
    """Returns the points per attempt; with `newest`, of the last current steps in two queries for all runs."""
    own = {name for name in names if name.startswith(PREFIX)}
    if not own:
        return []
    runs = Run.objects.filter(pk__in=run_ids)
    if newest:
        tables = load_last_sample_curves(runs)
    else:
        tables = {run.pk: load_curve_table(run.pk, run.created_at, run.version) for run in runs}
    return [((pk, *key), points) for pk, table in tables.items() for key, points in table.items() if key[0] in own]


def load_last_sample_curves(runs: QuerySet[Run]) -> dict[int, CurveTable]:
    """Returns the curves by run id of the last current step of each split and step kind."""
    steps = Step.objects.current().filter(run=OuterRef("pk"), samples__gt=0).order_by("-step").values("pk")
    axes = [(split, kind) for split in SPLITS for kind in STEP_KINDS]
    last = {f"{split}_{kind}": Subquery(steps.filter(split=split, step_kind=kind)[:1]) for split, kind in axes}
    step_ids = [pk for row in runs.annotate(**last).values_list(*last) for pk in row if pk]
    rows: dict[int, list[StepStatistics]] = defaultdict(list)
    for row in load_statistics(Step.objects.filter(pk__in=step_ids)):
        rows[row.run].append(row)
    names = load_rescore_names(rows)
    return {run: build_curve_table(own, names) for run, own in rows.items()}


@cached_newest(CacheSize.SAMPLE_TABLES)
def load_curve_table(run_id: int, created_at: datetime, version: int) -> CurveTable:
    """Returns all curves of a run, without copied steps. `version` increases with every visible change."""
    run = Run.objects.get(pk=run_id)
    steps = Step.objects.filter(run=run, samples__gt=0).exclude(pk__in=find_copied_steps(run))
    table = build_curve_table(load_statistics(steps), load_rescore_names([run_id]))
    occurring = {name for (name, _, _), (_, values) in table.items() if values.any()}
    return {
        key: points
        for key, points in table.items()
        if key[0] in occurring or key[0].rpartition("/")[2] not in {*TEXT_PROPERTY_BITS, "answer-mismatch"}
    }


def load_statistics(steps: QuerySet[Step]) -> list[StepStatistics]:
    texts = {
        "counts": Cast("facets", TextField()),
        "part_means": Cast("parts", TextField()),
        "rescore_means": Cast("rescores", TextField()),
    }
    others = {"parts": "part_means", "rescores": "rescore_means"}
    names = (others.get(name, name) for name in StepStatistics._fields)
    return list(map(StepStatistics._make, steps.annotate(**texts).order_by("step").values_list(*names)))


def load_rescore_names(run_ids: Iterable[int]) -> dict[str, str]:
    """Returns {key: name} of the numbers of the runs' re-scores. The keys of two re-scores are never equal."""
    rescores = Rescore.objects.filter(run__in=list(run_ids))
    return {key: name for rescore in rescores for name, key in rescore.list_columns().items()}


def build_curve_table(rows: Iterable[StepStatistics], rescores: Mapping[str, str]) -> CurveTable:
    axes: dict[tuple[str, str, int], list[StepStatistics]] = defaultdict(list)
    for row in rows:
        axes[row.split, row.step_kind, row.attempt].append(row)
    table: CurveTable = {}
    for (split, kind, attempt), own in axes.items():
        prefix = EVAL_PREFIX if split == "eval" else PREFIX
        steps = np.array([row.step for row in own], "<i8")
        curves = compute_curve_values(own) | compute_part_values(own) | compute_rescore_values(own, rescores)
        for name, values in curves.items():
            known = np.isfinite(values)
            if known.any():
                table[prefix + name, kind, attempt] = (steps[known], values[known])
    return table


def compute_curve_values(rows: Sequence[StepStatistics]) -> dict[str, ValueArray]:
    """Returns the values by curve name, NaN for steps that do not record them."""
    numbers = read_numbers(rows)
    means = {name.replace("_", "/"): numbers[name] for name in MEAN_FIELDS}
    shares = {name: divide(*counts) for name, counts in count_properties(rows, numbers).items()}
    return {**means, "staleness/max": numbers["staleness_max"], **shares}


def read_numbers(rows: Sequence[StepStatistics]) -> dict[str, ValueArray]:
    return {name: np.array([getattr(row, name) for row in rows], "<f8") for name in NUMBER_FIELDS}  # None becomes NaN


def count_properties(
    rows: Sequence[StepStatistics], numbers: dict[str, ValueArray]
) -> dict[str, tuple[ValueArray, ValueArray]]:
    """Returns for each property how many samples or groups of each step have it, and of how many that is known."""
    step_counts = [orjson.loads(row.counts) for row in rows]

    def count(name: str) -> ValueArray:
        return np.array([counts.get(name, 0) for counts in step_counts], "<f8")

    judged = count("judged")
    checked = np.array([row.properties is not None for row in rows], np.bool_)
    result = {
        "correct": (count("correct"), judged),
        "truncated": (numbers["truncated"], keep_known(numbers["samples"], numbers["truncated"])),
        "zerovar": (numbers["zero_variance_groups"], keep_known(numbers["groups"], numbers["score_mean"])),
    }
    for prop in PROPERTY_CATALOG:
        if prop.name not in result:
            total = numbers[prop.unit]
            total = np.where(judged > 0, total, 0) if prop.name.startswith("solve-") else total
            total = np.where(checked, total, 0) if prop.name in NEW_PROPERTIES else total
            result[prop.name] = (count(prop.name), total)
    return result


def keep_known(totals: ValueArray, values: ValueArray) -> ValueArray:
    """Returns the totals, 0 where the value is NaN."""
    return np.where(np.isnan(values), 0, totals)


def sum_properties(steps: QuerySet[Step]) -> dict[str, tuple[int, int]]:
    """Returns {property: (samples or groups that have it, those of which it is known)} of all steps together, without
    properties that are known of none."""
    rows = load_statistics(steps)
    counts = count_properties(rows, read_numbers(rows)).items()
    sums = {name: (int(hits[total > 0].sum()), int(total.sum())) for name, (hits, total) in counts}
    return {name: (hits, total) for name, (hits, total) in sums.items() if total}


def compute_part_values(rows: Sequence[StepStatistics]) -> dict[str, ValueArray]:
    """Returns the means of each reward part. A part that always equals the score has none, as it is no part of it."""
    steps = [orjson.loads(row.parts) if row.parts else {} for row in rows]
    names = sorted({name for parts in steps for name, part in parts.items() if not part["is_score"]})
    return {
        f"{PARTS_PREFIX}{name}": np.array([parts[name]["mean"] if name in parts else None for parts in steps], "<f8")
        for name in names
    }


def compute_rescore_values(rows: Sequence[StepStatistics], names: Mapping[str, str]) -> dict[str, ValueArray]:
    """Returns the means of each re-score."""
    steps = [orjson.loads(row.rescores) if names and row.rescores else {} for row in rows]
    known = sorted({key for means in steps for key in means if key in names})
    return {f"{RESCORES_PREFIX}{names[key]}": np.array([means.get(key) for means in steps], "<f8") for key in known}


def divide(part: ValueArray, total: ValueArray) -> ValueArray:
    """Returns the shares, NaN if the total is 0."""
    shares: ValueArray = np.divide(part, total, out=np.full(len(part), np.nan), where=total > 0)
    return shares


def load_sparklines(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Returns the mean training score over the current steps, as at most MAX_SPARKLINE_POINTS averages of equal width,
    by run uid. Where some steps count updates and others prompts, only those that count updates are used.

    Makes two queries for any number of runs.
    """
    uids = {run.pk: run.uid for run in runs}
    steps = Step.objects.current().filter(run__in=list(uids), split="train", score_mean__isnull=False).order_by()
    ends: dict[int, tuple[str, int]] = {}
    for run, kind, end in steps.values_list("run", "step_kind").annotate(Max("step")):
        ends[run] = min(ends.get(run, (kind, end)), (kind, end), key=lambda axis: STEP_KINDS.index(axis[0]))
    widths = [
        When(run=run, step_kind=kind, then=Value(max(1, -(-(end + 1) // MAX_SPARKLINE_POINTS))))
        for run, (kind, end) in ends.items()
    ]
    result: dict[str, list[float]] = {uid: [] for uid in uids.values()}
    if widths:
        bucket = F("step") / Case(*widths, output_field=BigIntegerField())
        rows = steps.annotate(bucket=bucket).exclude(bucket=None).values("run", "bucket")
        means = rows.annotate(mean=Avg("score_mean")).order_by("run", "bucket")
        for run, mean in means.values_list("run", "mean"):
            result[uids[run]].append(mean)
    return result
