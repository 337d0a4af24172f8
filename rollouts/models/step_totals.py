"""The numbers of a step for pages: attempts that run at the same time each have a row of the same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rollouts.models.steps import Step


@dataclass(frozen=True, slots=True)
class StepTotals:
    """The statistics of `Step` that pages show. `rules` are the numbers of the correctness rules that were applied.
    Groups of two attempts are two groups, also with the same name."""

    step: int
    samples: int
    generated: int | None
    groups: int
    zero_variance_groups: int
    score_mean: float | None
    length_mean: float | None
    truncated: int | None
    facets: Counter[str]
    flags: int
    rules: frozenset[int]
    dropped: int
    dropped_at: datetime | None


def load_step_totals(step: Step) -> StepTotals:
    """Returns the numbers of a current step, with those of the attempts that run at the same time as its own."""
    if step.superseded or step.attempt.concurrent_with_id is None:
        return add_steps([step])
    same = {"run": step.run_id, "split": step.split, "step_kind": step.step_kind, "step": step.step}
    return add_steps(list(Step.objects.current().filter(**same)) or [step])


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
        facets=facets,
        flags=sum(step.flags for step in steps),
        rules=frozenset(step.rule for step in steps),
        dropped=sum(step.dropped for step in steps),
        dropped_at=max((step.dropped_at for step in steps if step.dropped_at), default=None),
    )


def add_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def compute_mean(
    steps: Sequence[Step], get_mean: Callable[[Step], float | None], count: Callable[[Step], int]
) -> float | None:
    means = [(mean, count(step)) for step in steps if (mean := get_mean(step)) is not None]
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
