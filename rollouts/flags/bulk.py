"""Flags one or thousands of samples in one action, and withdraws flags. The labels below do the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels import MAX_SAMPLES, Answer, store_labels, withdraw_label
from rollouts.live import delay_notifications
from rollouts.models import Label, LabelAction, Run, get_flag_name
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.query import QueryResult


def collect_sample_ids(result: QueryResult, seen: int | None = None) -> list[str]:
    """Returns the ids of all samples that a query matches. Raises InvalidInputError if these are too many for one
    action, or not as many as the user saw (`seen`)."""
    total = result.total
    if total > MAX_SAMPLES:
        message = _("The query matches {count} samples. You can flag at most {limit} at once; narrow the query.")
        raise InvalidInputError(message.format(count=f"{total:,}", limit=f"{MAX_SAMPLES:,}"))
    if seen is not None and total != seen:
        message = _("The query now matches {count} samples instead of {before}. Check the result, then flag again.")
        raise InvalidInputError(message.format(count=f"{total:,}", before=f"{seen:,}"))
    return list(result.samples.order_by("pk").values_list("pk", flat=True))


@transaction.atomic
@delay_notifications()
def flag_samples(
    run: Run, sample_ids: Iterable[str], by: User, *, label: str = "bad", reason: str = "", text: str = ""
) -> LabelAction:
    """Flags these samples of the run for one reason: a key of the project's reasons, or empty. A flag of the same user
    and reason gets the new label and text. If it was withdrawn, it is active again. A flag that says bad withdraws the
    user's OK. The caller has checked that the user may annotate. Raises InvalidInputError, and NotFoundError if the run
    does not have a sample."""
    ids, name = list(dict.fromkeys(sample_ids)), get_flag_name(reason)
    action = store_labels(run, by, [Answer(pk, name, "" if label is None else label, text) for pk in ids])
    if action.pk:
        detail: dict[str, Any] = {"run": run.uid, "samples": ids[:20], "sample_count": len(ids)}
        detail |= {"flags": action.changed_count, "label": label}
        record_audit_entry(by, "flag.raise", action.description, project=run.project, reason=reason, **detail)
    return action


@transaction.atomic
@delay_notifications()
def withdraw_flag(flag: Label, by: User) -> LabelAction:
    """Withdraws a flag in an action that can be undone. The flag remains readable, and the audit log has the user. The
    caller has checked `can_withdraw_label`."""
    action = withdraw_label(flag, by)
    if action.pk:
        detail = {"label": flag.value, "reason": flag.reason, "text": flag.rationale, "flagged_by": flag.author}
        record_audit_entry(by, "flag.withdraw", flag.sample, project=flag.run.project, run=flag.run.uid, **detail)
    return action
