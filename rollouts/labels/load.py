"""Reads labels of samples, and says who may withdraw one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from django.db.models import Exists, OuterRef, Q

from rollouts.models import Label, Membership, Queue, QueueItem, Sample

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

ANNOTATORS = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)
MODERATORS = (Membership.Role.MAINTAINER, Membership.Role.OWNER)


def can_withdraw_label(user: User | AnonymousUser, label: Label) -> bool:
    """Returns whether the user may withdraw the label: what they said or stored, or any label for maintainers and
    owners. Another user may have imported what they said."""
    role = label.run.project.role_of(user)
    is_own = label.user_id == user.pk or (label.source == Label.Source.HUMAN and label.author == user.get_username())
    return role in MODERATORS or (role in ANNOTATORS and is_own)


def load_labels(
    sample_ids: Sequence[str], *, withdrawn: bool = False, reader: User | AnonymousUser | None = None
) -> dict[str, list[Label]]:
    """Returns the labels of each sample with users and rubrics, oldest first. Flags too; withdrawn ones on request.
    With `reader`, those that this user may read."""
    rows = Label.objects.filter(sample__in=list(sample_ids)).select_related("user", "rubric")
    if reader is not None:
        rows = rows.readable_by(reader)
    labels: dict[str, list[Label]] = defaultdict(list)
    for label in (rows if withdrawn else rows.active()).order_by("created_at", "pk"):
        labels[label.sample].append(label)
    return dict(labels)


def find_blind_samples(user: User | AnonymousUser, ids: Collection[str]) -> set[str]:
    """Returns which of these samples are items of open blind queues that the user reviews, or in a group that is one:
    the same as `LabelQuerySet.outside_of`."""
    if user.pk is None or not (blind := Queue.objects.blind_for(user.pk).queues):
        return set()
    items = QueueItem.objects.filter(queue__in=blind)
    members = items.filter(queue__unit=Queue.Unit.GROUP, step=OuterRef("step"), group=OuterRef("group"))
    hidden = Exists(items.filter(sample=OuterRef("pk"))) | (Exists(members) & ~Q(group=""))
    return set(Sample.objects.filter(hidden, pk__in=ids).values_list("pk", flat=True))
