"""Reads labels of samples, and says who may withdraw one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollouts.models import Label, Membership

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

ANNOTATORS = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)
MODERATORS = (Membership.Role.MAINTAINER, Membership.Role.OWNER)


def can_withdraw_label(user: User | AnonymousUser, label: Label) -> bool:
    """Returns whether the user may withdraw the label: what they stored, or any label for maintainers and owners."""
    role = label.run.project.role_of(user)
    return role in MODERATORS or (role in ANNOTATORS and label.user_id == user.pk)


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
