"""The numbers of a step for pages: attempts that run at the same time each have a row of the same step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from django.db.models import Avg, F, Q, Sum
from django.db.models.functions import Coalesce, NullIf

from rollouts.models.steps import Step, StepTemplate

SCORED_COUNT: Any = NullIf(Sum("trajectories", filter=Q(score_mean__isnull=False)), 0)
# The mean score of several rows in SQL. Such queries take twice as long as with `Avg`.
WEIGHTED_SCORE: Any = Coalesce(Sum(F("score_mean") * F("trajectories")) / SCORED_COUNT, Avg("score_mean"))
SHOWN_POSITION = ("run_id", "split", "step_kind", "step")  # of a step, whatever its attempt
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The statistics of `Step` that pages show. `rules` are the numbers of the correctness rules that were applied.
    Groups of two attempts are two groups, also with the same name. `histogram` is empty if the bins differ."""

    step: int
    samples: int
    generated: int | None
    groups: int
    zero_variance_groups: int
    score_mean: float | None
    length_mean: float | None
    truncated: int | None
    histogram: dict[str, Any]
    facets: Counter[str]
    flags: int
    rules: frozenset[int]
    dropped: int
    dropped_at: datetime | None


def load_step_totals(step: Step) -> StepTotals:
    """Returns the numbers of a current step, with those of the attempts that run at the same time as its own."""
    return add_steps(join_concurrent_steps([step])[step.pk])


def join_concurrent_steps(steps: Collection[Step]) -> dict[int, list[Step]]:
    """Returns {step id: the rows that pages show as one step}: the step, and if it is current, those of the attempts
    that run at the same time. Makes at most one query, if the attempts of the steps are loaded."""
    joined = {step.pk: [step] for step in steps}
    shared = [step for step in steps if not step.superseded and step.attempt.concurrent_with_id is not None]
    if not shared:
        return joined
    condition = reduce(or_, (Q(**dict(zip(SHOWN_POSITION, get_shown_position(step), strict=True))) for step in shared))
    rows: dict[tuple[Any, ...], list[Step]] = defaultdict(list)
    for row in Step.objects.current().filter(condition).order_by("pk"):
        rows[get_shown_position(row)].append(row)
    return joined | {step.pk: rows[get_shown_position(step)] or [step] for step in shared}


def get_shown_position(step: Step) -> tuple[Any, ...]:
    return tuple(getattr(step, name) for name in SHOWN_POSITION)


def add_steps(steps: Sequence[Step]) -> StepTotals:
    facets: Counter[str] = Counter()
    for step in steps:
        facets.update(step.facets)
    return StepTotals(
        step=steps[0].step,
        samples=sum(step.samples for step in steps),
        generated=add_known(step.generated for step in steps),
        groups=sum(step.groups for step in steps),
        zero_variance_groups=sum(step.zero_variance_groups for step in steps),
        score_mean=compute_mean(steps, lambda step: step.score_mean, count_scores),
        length_mean=compute_mean(steps, lambda step: step.length_mean, count_texts),
        truncated=add_known(step.truncated for step in steps),
        histogram=add_histograms([step.histogram for step in steps]),
        facets=facets,
        flags=sum(step.flags for step in steps),
        rules=frozenset(step.rule for step in steps),
        dropped=sum(step.dropped for step in steps),
        dropped_at=max((step.dropped_at for step in steps if step.dropped_at), default=None),
    )


def add_histograms(histograms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds the counts; empty if the histograms have different bins."""
    known = [histogram for histogram in histograms if histogram]
    if len({tuple(histogram.get("edges", ())) for histogram in known}) != 1:
        return {}
    return {**known[0], "counts": [sum(counts) for counts in zip(*(one["counts"] for one in known), strict=True)]}


def add_templates(templates: Iterable[StepTemplate]) -> list[StepTemplate]:
    """Returns the templates of the rows of one step, the largest first, those with the same key added up."""
    by_key: dict[int, list[StepTemplate]] = defaultdict(list)
    for template in templates:
        by_key[template.key].append(template)
    added = [own[0] if len(own) == 1 else merge_templates(own) for own in by_key.values()]
    return sorted(added, key=lambda template: (-template.samples, template.kind, template.key))


def merge_templates(templates: Sequence[StepTemplate]) -> StepTemplate:
    """Returns an unsaved template with the numbers of all of them."""
    first = templates[0]
    return StepTemplate(
        step=first.step,
        key=first.key,
        kind=first.kind,
        text=first.text,
        samples=sum(template.samples for template in templates),
        groups=sum(template.groups for template in templates),
        score_mean=compute_mean(templates, lambda template: template.score_mean, lambda template: template.samples),
    )


def add_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def compute_mean(
    rows: Sequence[Row], get_mean: Callable[[Row], float | None], count: Callable[[Row], int]
) -> float | None:
    means = [(mean, count(row)) for row in rows if (mean := get_mean(row)) is not None]
    total = sum(number for _, number in means)
    if len(means) < 2 or not total:
        return means[0][0] if means else None
    return sum(mean * number for mean, number in means) / total


def count_scores(step: Step) -> int:
    """Returns the samples that `score_mean` is the mean of."""
    return sum(step.histogram.get("counts", ()))


def count_texts(step: Step) -> int:
    """Returns the samples that `length_mean` is the mean of."""
    return step.samples - int(step.facets.get("no-text", 0))
