"""Compares a re-score with the score and the correctness rule, per data source, before a run is spent on it.

A sample is compared if it has both numbers; each trajectory counts once, by its last sample, as in all statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from itertools import islice
from math import sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from django.db.models import QuerySet

from rollouts.lib import CacheSize, cached
from rollouts.models import Rescore, Sample, build_rescore_column

MAX_SOURCES: Final = 50
MAX_EXAMPLES: Final = 12
CHUNK_ROWS: Final = 20_000
SUMS: Final = (
    "count", "old", "new", "old_squares", "new_squares", "products", "changed", "judged", "gained", "lost",
)  # fmt: skip
MAX_EQUAL_GAP: Final = 1e-6  # of the larger of the score and 1, as `compute_tolerance` of the query language

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RescoredSource:
    """`count` samples have both numbers. Of the `judged` ones, of which the rule knows whether they are correct, the
    re-score agrees with `agreed`; `gained` were wrong and are correct now, `lost` were correct. `correlation` is
    Pearson's, None if a side does not vary. `changed`: the two numbers differ."""

    source: str | None
    count: int
    old_mean: float | None
    new_mean: float | None
    changed: int
    judged: int
    agreed: int
    gained: int
    lost: int
    correlation: float | None

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.judged if self.judged else None


@dataclass(frozen=True, slots=True)
class RescoreComparison:
    """`sources` are the data sources, the largest first; `missing` samples of the steps have no result. `examples` are
    those with the largest difference, `disagreements` the number of samples that were called correct and are wrong now,
    or the reverse."""

    total: RescoredSource
    sources: list[RescoredSource]
    examples: list[Sample]
    missing: int

    @property
    def disagreements(self) -> int:
        return self.total.gained + self.total.lost


@cached(CacheSize.COMPARISONS)
def compare_rescore(rescore_id: int, born: datetime, version: int, split: str = "") -> RescoreComparison:
    """`born` is when the re-score was created, `version` that of the run, which increases with every visible change.
    Both are parts of the key of the cache."""
    rescore = Rescore.objects.select_related("run").get(pk=rescore_id)
    rows = find_compared_samples(rescore, split)
    sums, examples, missing = add_up(rows, rescore.verdict[1])
    order = sorted(sums, key=lambda source: (-sums[source][0], source))
    sources = [build_comparison(source, sums[source]) for source in order[:MAX_SOURCES]]
    return RescoreComparison(
        total=build_comparison(None, sum(sums.values(), np.zeros(len(SUMS)))),
        sources=[] if order in ([], [""]) else sources,
        examples=load_examples(examples),
        missing=missing,
    )


def find_compared_samples(rescore: Rescore, split: str) -> QuerySet[Any, Any]:
    """Returns a QuerySet of the rows that `add_up` reads, of the steps that have results."""
    rows = Sample.objects.current_and_visible().filter(step__in=rescore.blocks.values("step"), final=True)
    rows = rows.filter(step__split=split) if split else rows
    columns: dict[str, Any] = {
        "new": build_rescore_column(rescore.key),
        "verdict": build_rescore_column(rescore.verdict[0]),
    }
    names = ("pk", "data_source", "score", "new", "correct", "verdict")
    found: QuerySet[Any, Any] = rows.annotate(**columns).order_by()
    return found.values_list(*names)


def add_up(rows: QuerySet[Any, Any], threshold: float) -> tuple[dict[str, FloatArray], list[tuple[float, str]], int]:
    """Returns {data source: the numbers named in `SUMS`}, (difference, sample id) of the largest differences, and how
    many samples have no new number. Sums in SQL would read the JSON of each row once for each of them."""
    sums: dict[str, FloatArray] = {}
    largest: list[tuple[float, str]] = []
    missing = 0
    found = rows.iterator(chunk_size=CHUNK_ROWS)
    while read := list(islice(found, CHUNK_ROWS)):
        missing += sum(row[3] is None for row in read)
        chunk = [row for row in read if row[3] is not None and row[2] is not None]
        if not chunk:
            continue
        ids, sources, *columns = zip(*chunk, strict=True)
        old, new, correct, verdict = (np.array(column, np.float64) for column in columns)  # None becomes NaN
        gap, known = np.abs(new - old), ~(np.isnan(correct) | np.isnan(verdict))
        gap[gap <= MAX_EQUAL_GAP * np.maximum(1.0, np.abs(old))] = 0.0
        is_good = verdict > threshold
        numbers = np.stack(
            [
                np.ones(len(chunk)), old, new, old * old, new * new, old * new, gap > 0,
                known, known & is_good & (correct == 0), known & ~is_good & (correct == 1),
            ]
        )  # fmt: skip
        names, codes = np.unique(np.array(sources), return_inverse=True)
        for code, name in enumerate(names.tolist()):
            sums[name] = sums.get(name, np.zeros(len(SUMS))) + numbers[:, codes == code].sum(axis=1)
        top = np.argsort(-gap, kind="stable")[:MAX_EXAMPLES]
        largest = nsmallest(MAX_EXAMPLES, [*largest, *((-float(gap[at]), ids[at]) for at in top)])
    return sums, [(-gap, pk) for gap, pk in largest if gap < 0], missing


def load_examples(largest: list[tuple[float, str]]) -> list[Sample]:
    rows = Sample.objects.filter(pk__in=[pk for _gap, pk in largest]).select_related("step").in_bulk()
    return [rows[pk] for _gap, pk in largest if pk in rows]


def build_comparison(source: str | None, sums: FloatArray) -> RescoredSource:
    named = dict(zip(SUMS, sums.tolist(), strict=True))
    count = named["count"]
    return RescoredSource(
        source=source,
        count=int(count),
        old_mean=named["old"] / count if count else None,
        new_mean=named["new"] / count if count else None,
        changed=int(named["changed"]),
        judged=int(named["judged"]),
        agreed=int(named["judged"] - named["gained"] - named["lost"]),
        gained=int(named["gained"]),
        lost=int(named["lost"]),
        correlation=compute_correlation(named),
    )


def compute_correlation(sums: dict[str, float]) -> float | None:
    count = sums["count"]
    if count < 2:
        return None
    old, new = sums["old"] / count, sums["new"] / count
    variances = sums["old_squares"] / count - old * old, sums["new_squares"] / count - new * new
    if min(variances) <= 1e-12 * max(1.0, old * old, new * new):
        return None
    value = (sums["products"] / count - old * new) / sqrt(variances[0] * variances[1])
    return round(max(-1.0, min(1.0, value)), 9)  # sums leave a rest of 1e-16 where there is no correlation
