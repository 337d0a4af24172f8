"""How many generations a step made, where its trainer tells: those that it filtered out were never recorded."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from rollouts.models import Attempt, MetricRow, Run, Step
from rollouts.samples import MetricPoint

GENERATED_COUNT_METRIC = "rolloutdeck/generated"  # a metric, which may come before the step's samples or after them


def update_generated_counts(run: Run, attempt: Attempt, points: Iterable[MetricPoint]) -> None:
    """Writes it on the steps that are there already."""
    for point in points:
        if (count := whole(point.values.get(GENERATED_COUNT_METRIC))) is not None:
            steps = Step.objects.filter(run=run, attempt=attempt, split="train", step_kind=point.step_kind)
            steps.filter(step=point.step).update(generated=count)


def find_generated_count(step: Step) -> int | None:
    """What was told of a step before its samples came; else what the step knows already."""
    if step.split != "train":
        return None
    same = {name: getattr(step, name) for name in ("run_id", "attempt_id", "step_kind", "step")}
    rows = (
        MetricRow.objects.filter(**same, values__contains=GENERATED_COUNT_METRIC)
        .order_by("-pk")
        .values_list("values", flat=True)
    )
    found = (whole(orjson.loads(values).get(GENERATED_COUNT_METRIC)) for values in rows)
    return next((count for count in found if count is not None), step.generated)


def whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**31 else None
