"""Compares a re-score with the score and the correctness rule, per data source, before a run is spent on it.

A sample is compared if it has both numbers; each trajectory counts once, by its last sample, as in all statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

from django.db.models import Avg, Count, F, FloatField, Q, QuerySet, Sum
from django.db.models.functions import Abs, Cast

from rollouts.lib import CacheSize, cached
from rollouts.models import Rescore, Run, Sample, build_rescore_column

MAX_SOURCES: Final = 50
MAX_EXAMPLES: Final = 12
MAX_EQUAL_GAP: Final = 1e-6  # as `compute_tolerance` of the query language


@dataclass(frozen=True, slots=True)
class SourceComparison:
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

    total: SourceComparison
    sources: list[SourceComparison]
    examples: list[Sample]
    missing: int

    @property
    def disagreements(self) -> int:
        return self.total.gained + self.total.lost


@cached(CacheSize.COMPARISONS)
def compare_rescore(run_id: int, rescore_id: int, version: int, split: str = "") -> RescoreComparison:
    """`version` is that of the run, which increases with every visible change: it is part of the key of the cache."""
    rescore = Rescore.objects.select_related("run").get(pk=rescore_id, run=run_id)
    rows = find_compared_samples(rescore, split)
    totals = rows.aggregate(**build_sums(rescore))
    by_source = rows.values("data_source").annotate(**build_sums(rescore)).order_by("-n", "data_source")
    sources = [build_comparison(row["data_source"], row) for row in by_source[:MAX_SOURCES]]
    if len(sources) == 1 and not sources[0].source:
        sources = []
    examples = rows.filter(gap__gt=MAX_EQUAL_GAP).select_related("step")
    return RescoreComparison(
        total=build_comparison(None, totals),
        sources=sources,
        examples=list(examples.order_by("-gap", "pk")[:MAX_EXAMPLES]),
        missing=count_missing(rescore, split),
    )


def find_samples_of(run: Run, split: str) -> QuerySet[Sample]:
    rows: QuerySet[Sample] = Sample.objects.current_and_visible().filter(step__run=run, final=True)
    return rows.filter(step__split=split) if split else rows


def find_compared_samples(rescore: Rescore, split: str) -> QuerySet[Any]:
    rows = find_samples_of(rescore.run, split).annotate(new=build_rescore_column(rescore.key))
    rows = rows.annotate(verdict=build_rescore_column(rescore.verdict[0]))
    rows = rows.filter(new__isnull=False, score__isnull=False)
    return rows.annotate(gap=Abs(F("new") - F("score"), output_field=FloatField())).order_by()


def count_missing(rescore: Rescore, split: str) -> int:
    """Counts the samples without a number in the steps in which some have one."""
    rows = find_samples_of(rescore.run, split).filter(step__in=rescore.blocks.values("step"))
    return rows.annotate(new=build_rescore_column(rescore.key)).filter(new__isnull=True).count()


def build_sums(rescore: Rescore) -> dict[str, Any]:
    new, old = F("new"), Cast(F("score"), FloatField())
    is_correct = Q(verdict__gt=rescore.verdict[1])
    return {
        "n": Count("pk"), "old_mean": Avg("score"), "new_mean": Avg("new"),
        "old_squares": Sum(old * old), "new_squares": Sum(new * new), "products": Sum(old * new),
        "changed": Count("pk", filter=Q(gap__gt=MAX_EQUAL_GAP)),
        "judged": Count("pk", filter=Q(correct__isnull=False, verdict__isnull=False)),
        "gained": Count("pk", filter=is_correct & Q(correct=False)),
        "lost": Count("pk", filter=Q(correct=True, verdict__lte=rescore.verdict[1])),
    }  # fmt: skip


def build_comparison(source: str | None, row: dict[str, Any]) -> SourceComparison:
    return SourceComparison(
        source=source,
        count=row["n"],
        old_mean=row["old_mean"],
        new_mean=row["new_mean"],
        changed=row["changed"],
        judged=row["judged"],
        agreed=row["judged"] - row["gained"] - row["lost"],
        gained=row["gained"],
        lost=row["lost"],
        correlation=compute_correlation(row),
    )


def compute_correlation(row: dict[str, Any]) -> float | None:
    n = row["n"]
    if n < 2:
        return None
    old, new = row["old_mean"], row["new_mean"]
    variances = row["old_squares"] / n - old * old, row["new_squares"] / n - new * new
    if min(variances) <= 1e-12 * max(1.0, old * old, new * new):
        return None
    value = (row["products"] / n - old * new) / sqrt(variances[0] * variances[1])
    return max(-1.0, min(1.0, float(value)))
