"""Flags: a user's label on a sample, withdrawn but never deleted. `bulk.py` creates them, one or many in one action.

A flag refers to the sample's id, which is the same after a re-index, so a re-index does not copy flags.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from rolloutdeck.protocol import FLAG_LABELS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_multiline_text
from rollouts.live import notify_run_changed
from rollouts.models import Flag, Membership, Project, Step
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

MAX_TEXT_CHARS = 10_000
ANNOTATORS = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)
MODERATORS = (Membership.Role.MAINTAINER, Membership.Role.OWNER)


def can_withdraw_flag(user: User | AnonymousUser, flag: Flag) -> bool:
    """Returns whether the user may withdraw the flag: their own, or any flag for maintainers and owners."""
    role = flag.run.project.role_of(user)
    return role in MODERATORS or (role in ANNOTATORS and flag.user_id == user.pk)


@transaction.atomic
def apply_withdrawal(flag: Flag, by: User) -> Flag:
    """Withdraws a flag. It remains readable as withdrawn, and the audit log says who withdrew it.

    The caller has checked `can_withdraw_flag`.
    """
    step = Step.objects.select_for_update(no_key=True).get(pk=flag.step_id)
    flag.refresh_from_db()
    if flag.withdrawn_at is not None:
        return flag
    flag.withdrawn_at = timezone.now()
    flag.save(update_fields=["withdrawn_at", "updated_at"])
    Flag.objects.recount(step)
    detail = {"label": flag.label, "reason": flag.reason, "text": flag.text, "flagged_by": flag.user.get_username()}
    record_audit_entry(by, "flag.withdraw", flag.sample, project=step.run.project, **detail)
    notify_run_changed(step.run, split=step.split, step=step.step)
    return flag


def check_flag(project: Project, label: str, reason: str, text: str) -> None:
    """Raises InvalidInputError if the label, the reason or the text of a flag is not valid."""
    if label not in FLAG_LABELS:
        message = _("`label` must be one of {known}, not {label}.")
        raise InvalidInputError(message.format(known=", ".join(FLAG_LABELS), label=repr(str(label)[:40])), "label")
    keys = [str(entry["key"]) for entry in project.reasons]
    if reason and reason not in keys:
        message = _("`reason` must be one of {known}, or empty; not {reason}.")
        raise InvalidInputError(message.format(known=", ".join(keys), reason=repr(str(reason)[:40])), "reason")
    parse_multiline_text(text, "text", most=MAX_TEXT_CHARS)


def load_flags(sample_ids: Sequence[str], *, withdrawn: bool = False) -> dict[str, list[Flag]]:
    """Returns the flags of each sample with their users, oldest first. Withdrawn flags only if `withdrawn` is set."""
    rows = Flag.objects.filter(sample__in=list(sample_ids)).select_related("user").order_by("created_at", "pk")
    flags: dict[str, list[Flag]] = defaultdict(list)
    for flag in rows if withdrawn else rows.filter(withdrawn_at=None):
        flags[flag.sample].append(flag)
    return dict(flags)
