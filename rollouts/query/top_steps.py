"""The steps that can have the first samples of an ordering, so that a page of a long run does not sort all samples.

A step stores the lowest and highest value of some columns (`Step.ranges`). The last sample of a page is at least as
good as the last one of a page over a few steps, those with the best values. A step whose best value is worse has no
sample in the page. Without a condition each step has a sample with its best value: the first n samples are in the n
best steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db.models import F, FloatField, Q
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from rollouts.models import RANGED_COLUMNS, SampleQuerySet, StepQuerySet
from rollouts.query.sql import QueryScope

MIN_STEPS: Final = 16  # of fewer steps all samples are sorted
FIRST_STEPS: Final = 64  # that are read to find a value that the page has; fewer if these have enough samples
MAX_STEPS: Final = 2000  # more are not worth it


def find_top_steps(
    scope: QueryScope, ordering: str, count: int, limit: Callable[[Sequence[int]], SampleQuerySet], *, filtered: bool
) -> list[int] | None:
    """Returns the ids of the steps that have the first `count` samples of a query. None: all steps, because they are
    few, or the ordering has no ranges, or too few samples match or are asked for. `limit` returns the query's samples
    in these steps, `filtered` says that it may leave some out."""
    down, name = ordering.startswith("-"), ordering.removeprefix("-")
    if not count or name not in {*RANGED_COLUMNS, "step"} or scope.step_id is not None:
        return None
    steps = scope.steps.filter(samples__gt=0)
    if steps[:MIN_STEPS].count() < MIN_STEPS:
        return None
    # Steps of an older version that are not yet updated. They do not matter if all their samples were dropped.
    unknown = steps.filter(ranges__isnull=True, samples__gt=F("dropped"))
    if name != "step" and unknown.exists():
        return None
    ranked = rank_steps(steps, name, down=down)
    first: list[int] = []
    left = 4 * count
    for step, best, samples in ranked.values_list("pk", "best", "samples")[:FIRST_STEPS]:
        if best is None and not first:  # no sample has a value
            return find_top_steps(scope, "-step", count, limit, filtered=filtered)
        first.append(step)
        left -= samples
        if left <= 0 and len(first) >= MIN_STEPS // 2:
            break
    page = limit(first).values_list(RANGED_COLUMNS.get(name, "step__step"), "step__step")
    last = next(iter(page[count - 1 : count]), None)
    if last is None or last[0] is None:
        return None
    value, step = last
    better = Q(best__gt=value) if down else Q(best__lt=value)
    found = ranked.filter(better | Q(best=value, step__gte=step)).values_list("pk", flat=True)
    is_whole = not filtered and not steps.filter(dropped__gt=0).exists()
    ids = list(found[: min(count, MAX_STEPS + 1) if is_whole else MAX_STEPS + 1])
    return ids if len(ids) <= MAX_STEPS else None


def rank_steps(steps: StepQuerySet, name: str, *, down: bool) -> Any:
    """Returns a query set of the steps with the best value of each, the best step first, of equal ones the newest."""
    stored: Any = F("step") if name == "step" else Cast(KT(f"ranges__{name}__{int(down)}"), FloatField())
    best = F("best").desc(nulls_last=True) if down else F("best").asc(nulls_last=True)
    return steps.annotate(best=stored).order_by(best, "-step")
