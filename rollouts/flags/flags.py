"""Flags: a person's mark on a sample, withdrawn but never deleted. `marking.py` raises them, one or many in an act.

A flag hangs on the sample's id, which is the same after a re-index, so flags need no copying then.
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

MOST_TEXT = 10_000
ANNOTATORS = (Membership.Role.ANNOTATOR, Membership.Role.MAINTAINER, Membership.Role.OWNER)
KEEPERS = (Membership.Role.MAINTAINER, Membership.Role.OWNER)


def can_withdraw_flag(user: User | AnonymousUser, flag: Flag) -> bool:
    """One's own flag, or anybody's for maintainers and owners."""
    role = flag.run.project.role_of(user)
    return role in KEEPERS or (role in ANNOTATORS and flag.user_id == user.pk)


@transaction.atomic
def apply_withdrawal(flag: Flag, by: User) -> Flag:
    """Takes a flag back: it stays readable as withdrawn, and the audit log says who did it.

    The caller has checked `can_withdraw`.
    """
    step = Step.objects.select_for_update(no_key=True).get(pk=flag.step_id)
    flag.refresh_from_db()
    if flag.withdrawn_at is not None:
        return flag
    flag.withdrawn_at = timezone.now()
    flag.save(update_fields=["withdrawn_at", "updated_at"])
    Flag.objects.recount(step)
    told = {"label": flag.label, "reason": flag.reason, "text": flag.text, "flagged_by": flag.user.get_username()}
    record_audit_entry(by, "flag.withdraw", flag.sample, project=step.run.project, **told)
    notify_run_changed(step.run, split=step.split, step=step.step)
    return flag


def check_flag(project: Project, label: str, reason: str, text: str) -> None:
    """Raises BadInput for what a flag cannot hold."""
    if label not in FLAG_LABELS:
        said = _("`label` must be one of {known}, not {label}.")
        raise InvalidInputError(said.format(known=", ".join(FLAG_LABELS), label=repr(str(label)[:40])), "label")
    keys = [str(entry["key"]) for entry in project.reasons]
    if reason and reason not in keys:
        said = _("`reason` must be one of {known}, or empty; not {reason}.")
        raise InvalidInputError(said.format(known=", ".join(keys), reason=repr(str(reason)[:40])), "reason")
    parse_multiline_text(text, "text", most=MOST_TEXT)


def load_flags(sample_ids: Sequence[str], *, withdrawn: bool = False) -> dict[str, list[Flag]]:
    """Who flagged what: the flags of each sample, oldest first, with their users; standing ones only unless asked."""
    chosen = Flag.objects.filter(sample__in=list(sample_ids)).select_related("user").order_by("created_at", "pk")
    found: dict[str, list[Flag]] = defaultdict(list)
    for flag in chosen if withdrawn else chosen.filter(withdrawn_at=None):
        found[flag.sample].append(flag)
    return dict(found)
