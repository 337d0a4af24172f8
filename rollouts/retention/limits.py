"""Finds the training steps that are over a limit of age, count or size."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.db.models import F
from django.utils import timezone

from rollouts.models import Project, RetentionPolicy, Sample, Step, StepQuerySet
from rollouts.retention.protection import KEEP_TAG, Protection
from rollouts.retention.selection import StepsOverLimits, find_last_steps
from rollouts.retention.sizes import StepSizes

Rule = RetentionPolicy.Rule
# What a decision about a step needs.
STEP_FIELDS: Final = (
    "run__uid", "run__name", "run__tags", "attempt_id", "split", "step_kind", "step", "samples", "dropped",
    "created_at",
)  # fmt: skip


def find_steps(project: Project) -> StepQuerySet:
    """Steps with samples of the runs that are not in the trash. They have the fields of a decision only: the
    configuration of a run would take more memory than its steps."""
    steps: StepQuerySet = Step.objects.filter(run__project=project, run__deleted_at=None, samples__gt=F("dropped"))
    return steps.select_related("run").only(*STEP_FIELDS)


def find_limits(policy: RetentionPolicy, protection: Protection, sizes: StepSizes | None = None) -> StepsOverLimits:
    """`sizes` are needed if the policy has a limit of bytes."""
    now = timezone.now()
    steps = find_steps(policy.project).filter(split="train")
    training = list(steps.order_by("run", "step_kind", "-attempt__number", "-step"))
    over: dict[int, str] = {}
    if policy.max_bytes and sizes:
        over |= dict.fromkeys(
            find_steps_over_byte_limit(policy.max_bytes, training, protection, sizes), Rule.SIZE.value
        )
    if policy.max_steps:
        over |= dict.fromkeys(find_surplus_steps(policy.max_steps, policy.project), Rule.COUNT.value)
    if policy.max_age_days:
        oldest = now - timedelta(days=policy.max_age_days)
        over |= dict.fromkeys((step.pk for step in training if step.created_at < oldest), Rule.AGE.value)
    return StepsOverLimits(over, find_last_steps(training), now)


def find_surplus_steps(max_steps: int, project: Project) -> list[int]:
    """Returns the ids of the training steps of each run that are not among its newest `max_steps`.

    Attempts that ran at the same time have a step together. A step that a later attempt superseded is not shown. It
    counts for nothing, and goes when it is older than all steps that are kept. Steps without samples count too, so that
    a second pass drops nothing more.
    """
    steps = Step.objects.filter(run__project=project, run__deleted_at=None, split="train", samples__gt=0)
    columns = ("pk", "run", "step_kind", "attempt__number", "attempt__concurrent_with__number", "step", "superseded")
    rows_by_axis: dict[tuple[int, str], list[tuple[int, int, int, bool]]] = {}
    for pk, run, kind, attempt, first, number, superseded in steps.values_list(*columns).iterator():
        rows_by_axis.setdefault((run, kind), []).append((first or attempt, number, pk, superseded))
    surplus: list[int] = []
    for rows in rows_by_axis.values():
        rows.sort(reverse=True)
        shown = list(dict.fromkeys((attempt, number) for attempt, number, _pk, superseded in rows if not superseded))
        if len(shown) <= max_steps:
            continue
        kept = set(shown[:max_steps])
        oldest = min(number for _attempt, number in kept)
        for attempt, number, pk, superseded in rows:
            if (number < oldest) if superseded else ((attempt, number) not in kept):
                surplus.append(pk)
    return surplus


def find_steps_over_byte_limit(
    max_bytes: int, training: Sequence[Step], protection: Protection, sizes: StepSizes
) -> list[int]:
    """Returns the ids of the oldest steps whose bytes exceed the limit. Passes over steps that are kept."""
    excess, over = sizes.total - max_bytes, []
    last = find_last_steps(training)
    for step in sorted(training, key=lambda step: (step.created_at, step.pk)):
        if excess <= 0:
            break
        if step.pk in last or KEEP_TAG in step.run.tags or protection.find_step_reason(step):
            continue
        size = sizes.sum_step(step)
        protected = protection.groups.get(step.pk)
        if protected and not Sample.objects.filter(step=step).exclude(group__in=protected).exists():
            continue
        over.append(step.pk)
        excess -= size
    return over
