"""Curves of what the samples show, beside the metrics that the trainer logs, such as `samples/eval/correct`.

Derived from the figures of the steps and stored nowhere. Shares are of 1: of the step's samples, or of its groups where
groups are what is counted. What a run does not record has no curve, nor has a facet of its texts that never occurs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import orjson
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.lib import MAX_SAMPLE_TABLES, cached
from rollouts.metrics.blocks import PointArrays, ValueArray
from rollouts.models import Dump, Run, Step
from rollouts.samples import PROPERTY_CATALOG, TEXT_PROPERTY_BITS

PREFIX: Final = "samples/"
EVAL: Final = "eval/"
PLAIN: Final = ("score_mean", "score_p10", "score_p50", "score_p90", "length_mean")  # drawn as they are
NUMBERS: Final = (*PLAIN, "samples", "groups", "truncated", "zero_variance_groups")

Where = tuple[str, str, int]  # name, step kind, attempt id
Whose = tuple[int, str, str, int]  # run id and the same
Table = dict[Where, PointArrays]


class StepStatistics(NamedTuple):
    """A step's row, as far as curves are made of it. `counts` is JSON text."""

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
    truncated: int | None
    zero_variance_groups: int
    counts: str


def list_sample_curve_names(run: Run, attempt: str = "") -> set[str]:
    """Of the run's curves; of one attempt only when its key is given."""
    own = set(run.attempts.filter(key=attempt).values_list("pk", flat=True)) if attempt else None
    return {name for name, _, of in table(run.pk, run.created_at, run.version) if own is None or of in own}


def load_sample_curve_points(
    run_ids: Iterable[int], wanted: Collection[str], *, newest: bool = False
) -> list[tuple[Whose, PointArrays]]:
    """The points of the wanted curves of some runs, each attempt's by itself; of the current last steps only if asked,
    in two queries for any number of runs."""
    mine = {name for name in wanted if name.startswith(PREFIX)}
    if not mine:
        return []
    runs = Run.objects.filter(pk__in=run_ids)
    tables = (
        load_last_sample_curves(runs)
        if newest
        else {run.pk: table(run.pk, run.created_at, run.version) for run in runs}
    )
    return [
        ((pk, *where), found) for pk, curves in tables.items() for where, found in curves.items() if where[0] in mine
    ]


def load_last_sample_curves(runs: QuerySet[Run]) -> dict[int, Table]:
    """What the last current steps of the runs show: of each split one for each thing that steps count, as the number of
    a prompt is no later than that of an update."""
    steps = Step.objects.current().filter(run=OuterRef("pk"), samples__gt=0).order_by("-step").values("pk")
    axes = [(split, kind) for split in SPLITS for kind in STEP_KINDS]
    last = {f"{split}_{kind}": Subquery(steps.filter(split=split, step_kind=kind)[:1]) for split, kind in axes}
    ends = [pk for found in runs.annotate(**last).values_list(*last) for pk in found if pk]
    rows: dict[int, list[StepStatistics]] = defaultdict(list)
    for row in read(Step.objects.filter(pk__in=ends)):
        rows[row.run].append(row)
    return {run: tabled(found) for run, found in rows.items()}


@cached(MAX_SAMPLE_TABLES)
def table(run_id: int, born: datetime, version: int) -> Table:
    """Every curve of a run as of `version`, which rises with every visible change and so names the content. Not those
    of steps that only copy another attempt's."""
    run = Run.objects.get(pk=run_id)
    found = tabled(read(Step.objects.filter(run=run, samples__gt=0).exclude(pk__in=find_copied_steps(run))))
    occurring = {name for (name, _, _), (_, values) in found.items() if values.any()}
    return {
        where: curve
        for where, curve in found.items()
        if where[0] in occurring or where[0].rpartition("/")[2] not in TEXT_PROPERTY_BITS
    }


def read(steps: QuerySet[Step]) -> list[StepStatistics]:
    counted = steps.annotate(counts=Cast("facets", TextField())).order_by("step")
    return list(map(StepStatistics._make, counted.values_list(*StepStatistics._fields)))


def tabled(rows: Iterable[StepStatistics]) -> Table:
    axes: dict[tuple[str, str, int], list[StepStatistics]] = defaultdict(list)
    for row in rows:
        axes[row.split, row.step_kind, row.attempt].append(row)
    found: Table = {}
    for (split, kind, attempt), own in axes.items():
        head = PREFIX + (EVAL if split == "eval" else "")
        steps = np.array([row.step for row in own], "<i8")
        for name, values in shown(own).items():
            told = np.isfinite(values)
            if told.any():
                found[head + name, kind, attempt] = (steps[told], values[told])
    return found


def shown(rows: Sequence[StepStatistics]) -> dict[str, ValueArray]:
    """Values by name, NaN where a step does not record them."""
    column = dict(zip(StepStatistics._fields, zip(*rows, strict=True), strict=True))
    known = {name: np.array(column[name], "<f8") for name in NUMBERS}  # None becomes NaN
    counts = [orjson.loads(text) for text in column["counts"]]
    judged = np.array([one.get("judged", 0) for one in counts], "<f8")
    told = {
        **{name.replace("_", "/"): known[name] for name in PLAIN},
        "correct": share(np.array([one.get("correct", 0) for one in counts], "<f8"), judged),
        "truncated": share(known["truncated"], known["samples"]),
        "zerovar": share(known["zero_variance_groups"], np.where(np.isnan(known["score_mean"]), 0, known["groups"])),
    }
    for facet in PROPERTY_CATALOG:
        if facet.name not in told:
            whole = known[facet.unit]
            whole = np.where(judged > 0, whole, 0) if facet.name.startswith("solve-") else whole
            told[facet.name] = share(np.array([one.get(facet.name, 0) for one in counts], "<f8"), whole)
    return told


def share(part: ValueArray, whole: ValueArray) -> ValueArray:
    shares: ValueArray = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return shares


def find_copied_steps(run: Run) -> list[int]:
    """Steps that only batches tell of while another attempt has their text: somebody imported what a launch kept."""
    if not run.artifacts.exists():
        return []
    made = run.dumps.filter(segment__isnull=False)
    places = ("attempt", "split", "step_kind", "step")
    kept = set(made.filter(source__startswith=Dump.ARTIFACT_PREFIX).values_list(*places))
    steps = {place[-1] for place in kept}
    text = set(made.filter(step__in=steps).exclude(source__startswith=Dump.ARTIFACT_PREFIX).values_list(*places))
    others = {place[1:] for place in text}
    doubles = {place for place in kept - text if place[1:] in others}
    rows = run.steps.filter(step__in={place[-1] for place in doubles}).values_list("pk", *places) if doubles else ()
    return [pk for pk, *place in rows if tuple(place) in doubles]
