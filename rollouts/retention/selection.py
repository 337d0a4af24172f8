"""Decides what a policy keeps of each training step. The same rows always give the same decision.

Groups are sampled by a hash of the seed, the step and the group, so a second pass over the remaining groups chooses the
same ones, and a step that is checked twice loses nothing more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Count, F, Max, Min
from django.utils import timezone

from rollouts.models import Dump, RetentionPolicy, Sample, Step, get_step_position
from rollouts.retention.protection import KEEP_TAG, Protection

Rule = RetentionPolicy.Rule
Train = RetentionPolicy.Train
PENDING_STATES = (Dump.State.RECEIVED, Dump.State.INDEXING, Dump.State.FAILED, Dump.State.UNSAFE)


class GroupSummary(NamedTuple):
    """The visible samples of a group and the range of their scores."""

    group: str
    samples: int
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class StepsOverLimits:
    """The steps that a limit of the policy covers: {step id: rule}. `last_steps` are never dropped."""

    over: dict[int, str]
    last_steps: frozenset[int]
    now: datetime = field(default_factory=timezone.now)


@dataclass(frozen=True, slots=True)
class StepDecision:
    """What happens to a step. `kept_groups` is None if nothing is dropped. `reasons` counts the kept samples."""

    step: Step
    rule: str
    kept_groups: frozenset[str] | None
    reasons: dict[str, int]
    dropped: int = 0

    @property
    def drops(self) -> bool:
        return self.kept_groups is not None and self.dropped > 0


def find_last_steps(steps: Iterable[Step]) -> frozenset[int]:
    """Returns the ids of the last training step of each attempt."""
    last: dict[tuple[int, str], Step] = {}
    for step in steps:
        key = step.attempt_id, step.step_kind
        if key not in last or step.step > last[key].step:
            last[key] = step
    return frozenset(step.pk for step in last.values())


def decide_step(step: Step, policy: RetentionPolicy, protection: Protection, limits: StepsOverLimits) -> StepDecision:
    """`step.run` is loaded."""
    remaining = step.samples - step.dropped
    if reason := find_keep_reason(step, policy, protection, limits):
        return StepDecision(step, "", None, {reason: remaining})
    rule = find_drop_rule(step, policy, limits)
    groups = load_groups(step)
    kept = dict(protection.groups.get(step.pk, {}))
    if rule == Rule.SAMPLE:
        kept = select_groups(step, policy, groups) | kept
    if kept and has_unverified_dump(step):
        return StepDecision(step, "", None, {"not-verified": remaining})
    reasons: dict[str, int] = {}
    for group in groups:
        if reason := kept.get(group.group, ""):
            reasons[reason] = reasons.get(reason, 0) + group.samples
    dropped = sum(group.samples for group in groups if group.group not in kept)
    return StepDecision(step, rule, frozenset(kept), reasons, dropped)


def find_keep_reason(step: Step, policy: RetentionPolicy, protection: Protection, limits: StepsOverLimits) -> str:
    """Returns why the complete step is kept, "" if a rule applies to it."""
    if step.split != "train":
        return "evaluation"
    if KEEP_TAG in step.run.tags:
        return "run-tag"
    if reason := protection.find_step_reason(step):
        return reason
    if step.pk in limits.last_steps:
        return "last-step"
    if step.pk not in limits.over:
        if policy.train == Train.ALL:
            return "whole"
        if step.created_at > limits.now - timedelta(days=policy.after_days):
            return "young"
        if policy.train == Train.EVERY and step.step % policy.every == 0:
            return "every"
    if Dump.objects.filter(**get_step_position(step), state__in=PENDING_STATES).exists():
        return "not-indexed"
    return ""


def has_unverified_dump(step: Step) -> bool:
    """Whether a body of the step did not reproduce its raw bytes. Then neither is thinned until it is indexed again."""
    dumps = Dump.objects.filter(**get_step_position(step), segment__isnull=False, raw_dropped_at=None)
    return dumps.filter(raw_kept_at__gte=F("indexed_at")).exists()


def find_drop_rule(step: Step, policy: RetentionPolicy, limits: StepsOverLimits) -> str:
    return limits.over.get(step.pk) or (Rule.EVERY if policy.train == Train.EVERY else Rule.SAMPLE)


def load_groups(step: Step) -> list[GroupSummary]:
    rows = Sample.objects.visible().filter(step=step).values_list("group").order_by("group")
    return [GroupSummary(*row) for row in rows.annotate(Count("pk"), Min("score"), Max("score"))]


def select_groups(step: Step, policy: RetentionPolicy, groups: Sequence[GroupSummary]) -> dict[str, str]:
    """Returns {group: reason} of the sample, and of the groups with the highest and the lowest scores."""
    ranked = sorted(groups, key=lambda group: compute_rank(step, policy.seed, group.group))
    scored = [group for group in ranked if group.high is not None]
    best = sorted(scored, key=lambda group: -(group.high or 0.0))[: policy.extremes]
    worst = sorted(scored, key=lambda group: group.low or 0.0)[: policy.extremes]
    extremes = dict.fromkeys((group.group for group in (*best, *worst)), "extreme")
    return extremes | dict.fromkeys((group.group for group in ranked[: policy.groups]), "sample")


def compute_rank(step: Step, seed: int, group: str) -> bytes:
    key = f"{seed}/{step.run.uid}/{step.attempt_id}/{step.split}/{step.step_kind}/{step.step}/{group}"
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
