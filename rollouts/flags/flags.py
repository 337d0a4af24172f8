"""Flags: a user's label on a sample. `bulk.py` creates and withdraws them, one or many in one action.

A flag refers to the sample's id, which is the same after a re-index, so a re-index does not copy flags.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from rolloutdeck.protocol import FLAG_LABELS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_multiline_text
from rollouts.models import Flag, Membership, Project

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

MAX_TEXT_CHARS = 10_000
ANNOTATORS = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)
MODERATORS = (Membership.Role.MAINTAINER, Membership.Role.OWNER)


def can_withdraw_flag(user: User | AnonymousUser, flag: Flag) -> bool:
    """Returns whether the user may withdraw the flag: their own, or any flag for maintainers and owners."""
    role = flag.run.project.role_of(user)
    return role in MODERATORS or (role in ANNOTATORS and flag.user_id == user.pk)


def check_flag(project: Project, label: str, reason: str, text: str) -> None:
    """Raises InvalidInputError if the label, the reason or the text of a flag is not valid."""
    if label not in FLAG_LABELS:
        message = _("`label` must be one of {known}, not {label}.")
        raise InvalidInputError(message.format(known=", ".join(FLAG_LABELS), label=repr(str(label)[:40])), "label")
    keys = [str(entry["key"]) for entry in project.reasons]
    if reason and reason not in keys:
        message = _("`reason` must be one of {known}, or empty; not {reason}.")
        raise InvalidInputError(message.format(known=", ".join(keys), reason=repr(str(reason)[:40])), "reason")
    parse_multiline_text(text, "text", max_chars=MAX_TEXT_CHARS)


def load_flags(sample_ids: Sequence[str], *, withdrawn: bool = False) -> dict[str, list[Flag]]:
    """Returns the flags of each sample with their users, oldest first. Withdrawn flags only if `withdrawn` is set."""
    rows = Flag.objects.filter(sample__in=list(sample_ids)).select_related("user").order_by("created_at", "pk")
    flags: dict[str, list[Flag]] = defaultdict(list)
    for flag in rows if withdrawn else rows.filter(withdrawn_at=None):
        flags[flag.sample].append(flag)
    return dict(flags)
