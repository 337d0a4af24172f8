"""What a policy never drops: everything that a user refers to.

A run with the tag `keep`; steps that are pinned or in a plan of an unfinished run; the groups of samples that are
labelled, flagged, in an open review queue or in a finding. Findings that were removed count, since they can be
restored. Shared links need no protection of their own: a link to a finding shows its evidence, and every link is a
complete copy.
A new kind of reference protects its samples in `find_protected_samples`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from rollouts.models import (
    FLAG_NAME,
    STEP_POSITION,
    EvidenceItem,
    Label,
    Pin,
    Project,
    QueueItem,
    Sample,
    Step,
    get_step_position,
)
from rollouts.pins import find_bound_pins

KEEP_TAG = "keep"
FLAG_UNDO_WINDOW = timedelta(days=1)  # a withdrawn flag can be restored for so long
SAMPLES_PER_QUERY = 500

StepPosition = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Protection:
    """`steps` are {position: reason}, `groups` are {step id: {group: reason}}."""

    steps: dict[StepPosition, str]
    groups: dict[int, dict[str, str]]

    def find_step_reason(self, step: Step) -> str:
        return self.steps.get(tuple(get_step_position(step).values()), "")


def load_protection(project: Project, step: Step | None = None) -> Protection:
    """Of the project, or of one step."""
    return Protection(find_protected_steps(project, step), find_protected_groups(project, step))


def find_protected_steps(project: Project, step: Step | None) -> dict[StepPosition, str]:
    position = get_step_position(step) if step else {}
    pins = Pin.objects.filter(run__project=project, **position)
    bound = pins.filter(pk__in=find_bound_pins().values("pk"))
    steps: dict[StepPosition, str] = dict.fromkeys(bound.values_list(*STEP_POSITION), "bound-plan")
    return steps | dict.fromkeys(pins.filter(removed_at=None).values_list(*STEP_POSITION), "pinned")


def find_protected_groups(project: Project, step: Step | None) -> dict[int, dict[str, str]]:
    """Groups are protected as a whole: the responses to the same prompt are the context of a flag."""
    reasons = find_protected_samples(project, step)
    in_scope = Sample.objects.filter(step=step) if step else Sample.objects.filter(step__run__project=project)
    groups: dict[int, dict[str, str]] = {}
    ids = list(reasons)
    for start in range(0, len(ids), SAMPLES_PER_QUERY):
        rows = in_scope.filter(pk__in=ids[start : start + SAMPLES_PER_QUERY])
        for pk, step_id, group in rows.values_list("pk", "step", "group"):
            groups.setdefault(step_id, {}).setdefault(group, reasons[pk])
    return groups


def find_protected_samples(project: Project, step: Step | None) -> dict[str, str]:
    active = Q(withdrawn_at=None) | Q(withdrawn_at__gt=timezone.now() - FLAG_UNDO_WINDOW)
    in_scope = Q(step=step) if step else Q(run__project=project)
    labels = Label.objects.filter(active, in_scope)
    kinds = {"labelled": labels.exclude(name__startswith=FLAG_NAME), "flagged": labels.flags()}
    reasons = dict.fromkeys(list_evidence_samples(project), "finding")
    queued = QueueItem.objects.filter(in_scope, queue__closed_at=None)
    reasons |= dict.fromkeys(queued.values_list("sample", flat=True), "queued")
    for reason, rows in kinds.items():
        reasons |= dict.fromkeys(rows.values_list("sample", flat=True), reason)
    return reasons


def list_evidence_samples(project: Project) -> Iterator[str]:
    """Yields the samples in findings, and those that the result of a query in a finding lists."""
    items = EvidenceItem.objects.filter(finding__project=project)
    yield from items.filter(kind=EvidenceItem.Kind.SAMPLE).values_list("sample", flat=True)
    for held in items.filter(kind=EvidenceItem.Kind.QUERY).values_list("held", flat=True):
        yield from (row["id"] for row in json.loads(held).get("rows", ()))
