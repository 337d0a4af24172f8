"""Bulk flag actions: flag one or thousands of samples in one action, and undo it.

Every action is a `BulkFlagAction` row, which stores the state of each flag before and after the action. Undo restores
only flags that nobody changed since: a flag that was changed and changed back is not restored. A restored flag gets
its old `updated_at` again, so that the action before it can be undone too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.flags import flags
from rollouts.live import notify_run_changed
from rollouts.models import BulkFlagAction, Flag, Run, Sample, Step
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.query import QueryResult

MAX_SAMPLES = 2000  # per action
UNDO_WINDOW = timedelta(days=1)  # how long an action can be undone

FlagState = list[Any]  # [label, text, withdrawn]
FlagChange = tuple[Flag, FlagState | None, str | None]  # the changed flag, its state before, its old `updated_at`


@dataclass(frozen=True, slots=True)
class UndoResult:
    """`restored_count` flags were restored, `unchanged_count` flags had changed since and were not. `sample` is set if
    the action was on one sample."""

    description: str
    restored_count: int
    unchanged_count: int
    sample: str


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
def flag_samples(
    run: Run, sample_ids: Iterable[str], by: User, *, label: str = "bad", reason: str = "", text: str = ""
) -> BulkFlagAction:
    """Flags these samples of the run for one reason: a key of the project's reasons, or empty. A flag of the same user
    and reason gets the new label and text. If it was withdrawn, it is active again. The caller has checked that the
    user may annotate. Raises InvalidInputError, and NotFoundError if the run does not have a sample."""
    ids = list(dict.fromkeys(sample_ids))
    flags.check_flag(run.project, label, reason, text)
    if not ids or len(ids) > MAX_SAMPLES:
        message = _("Select 1 to {limit} samples, not {count}.")
        raise InvalidInputError(message.format(limit=f"{MAX_SAMPLES:,}", count=f"{len(ids):,}"), "samples")
    steps = lock_samples(run, ids)
    existing = {flag.sample: flag for flag in Flag.objects.filter(sample__in=ids, user=by, reason=reason)}
    values = {"run": run, "user": by, "reason": reason, "label": label, "text": text}
    new = [Flag(sample=pk, step_id=steps[pk], **values) for pk in ids if pk not in existing]
    after: FlagState = [label, text, False]
    changed = [flag for flag in existing.values() if get_state(flag) != after]
    before: list[FlagChange] = [(flag, get_state(flag), format_updated_at(flag)) for flag in changed]
    for flag in changed:
        set_state(flag, after, timezone.now())
    created = Flag.objects.bulk_create(new)
    Flag.objects.bulk_update(changed, ["label", "text", "withdrawn_at", "updated_at"])
    update_steps(run, {steps[flag.sample] for flag in [*created, *changed]})
    template = ngettext("{flag} on {count} sample", "{flag} on {count} samples", len(ids))
    description = template.format(flag=format_flag(run, label, reason), count=f"{len(ids):,}")
    if created or changed:
        detail = {"run": run.uid, "samples": ids[:20], "flags": len(created) + len(changed), "label": label}
        record_audit_entry(by, "flag.raise", description, project=run.project, reason=reason, **detail)
    return store_action(run, by, description, [*((flag, None, None) for flag in created), *before], after)


@transaction.atomic
def withdraw_flag(flag: Flag, by: User) -> BulkFlagAction:
    """Withdraws a flag in an action that can be undone. The flag remains readable, and the audit log has the user. The
    caller has checked `can_withdraw_flag`."""
    lock_steps({flag.step_id})
    flag.refresh_from_db()
    changes: list[FlagChange] = []
    if flag.withdrawn_at is None:
        changes = [(flag, get_state(flag), format_updated_at(flag))]
        flag.withdrawn_at = timezone.now()
        flag.save(update_fields=["withdrawn_at", "updated_at"])
        detail = {"label": flag.label, "reason": flag.reason, "text": flag.text, "flagged_by": flag.user.get_username()}
        record_audit_entry(by, "flag.withdraw", flag.sample, project=flag.run.project, run=flag.run.uid, **detail)
        update_steps(flag.run, {flag.step_id})
    description = _("withdrawal of {flag}").format(flag=format_flag(flag.run, flag.label, flag.reason))
    return store_action(flag.run, by, description, changes, get_state(flag))


@transaction.atomic
def undo_flag_action(run: Run, by: User) -> UndoResult:
    """Undoes the user's newest action in this run. Raises NotFoundError if there is nothing to undo."""
    undoable = BulkFlagAction.objects.select_for_update(no_key=True).filter(
        run=run, user=by, undone_at=None, created_at__gt=timezone.now() - UNDO_WINDOW
    )
    action = undoable.order_by("-created_at", "-pk").first()
    if action is None:
        raise NotFoundError(_("Nothing to undo in this run. You can undo your own actions of the last 24 hours."))
    changes, after = {pk: change for pk, *change in action.before["was"]}, action.before["left"]
    rows = Flag.objects.filter(pk__in=changes).order_by("pk")
    lock_steps(set(rows.values_list("step", flat=True)))
    now = timezone.now()
    unchanged = [flag for flag in rows if get_state(flag) == after and format_updated_at(flag) == changes[flag.pk][0]]
    for flag in unchanged:
        before, updated_at = changes[flag.pk][1:]
        at = datetime.fromisoformat(updated_at) if updated_at else now
        set_state(flag, before or [flag.label, flag.text, True], at)
    Flag.objects.bulk_update(unchanged, ["label", "text", "withdrawn_at", "updated_at"])
    action.undone_at = now
    action.save(update_fields=["undone_at"])
    sample_ids = sorted({flag.sample for flag in rows})
    detail = {"run": run.uid, "samples": sample_ids[:20], "flags": len(unchanged)}
    record_audit_entry(by, "flag.undo", action.description, project=run.project, **detail)
    update_steps(run, {flag.step_id for flag in unchanged})
    sample = sample_ids[0] if len(sample_ids) == 1 else ""
    return UndoResult(action.description, len(unchanged), len(changes) - len(unchanged), sample)


def lock_samples(run: Run, sample_ids: Sequence[str]) -> dict[str, int]:
    """Locks the steps of the samples. Returns the step id of each sample. Raises NotFoundError."""
    valid_ids = [pk for pk in sample_ids if pk.isascii() and pk.isprintable()]  # PostgreSQL refuses NUL and surrogates
    steps = dict(Sample.objects.filter(pk__in=valid_ids, step__run=run).values_list("pk", "step"))
    if missing := [pk for pk in sample_ids if pk not in steps]:
        message = _("Sample {sample} not found in {run}.")
        raise NotFoundError(message.format(sample=missing[0][:60], run=run.name), "samples")
    lock_steps(set(steps.values()))
    return steps


def lock_steps(step_ids: set[int]) -> None:
    """Locks the rows of the steps, always in the same order, so that two actions do not deadlock."""
    list(Step.objects.select_for_update(no_key=True).filter(pk__in=step_ids).order_by("pk").values_list("pk"))


def get_state(flag: Flag) -> FlagState:
    return [flag.label, flag.text, flag.withdrawn_at is not None]


def format_updated_at(flag: Flag) -> str:
    """Returns the time of the last change in ISO format, in UTC, with microseconds."""
    return flag.updated_at.astimezone(UTC).isoformat()


def set_state(flag: Flag, state: FlagState, at: datetime) -> None:
    flag.label, flag.text = state[0], state[1]
    flag.withdrawn_at = at if state[2] else None
    flag.updated_at = at


def update_steps(run: Run, step_ids: set[int]) -> None:
    """Updates the flag counts of the steps and sends one notification: for the step if it is one, else for the run."""
    steps = list(Step.objects.filter(pk__in=step_ids))
    for step in steps:
        Flag.objects.recount(step)
    if len(steps) == 1:
        notify_run_changed(run, split=steps[0].split, step=steps[0].step)
    elif steps:
        notify_run_changed(run)


def store_action(run: Run, by: User, description: str, changes: list[FlagChange], after: FlagState) -> BulkFlagAction:
    """Returns the action, stored if it changed a flag. Deletes the user's actions that can no longer be undone."""
    BulkFlagAction.objects.filter(user=by, created_at__lt=timezone.now() - UNDO_WINDOW).delete()
    rows = [[flag.pk, format_updated_at(flag), before, updated_at] for flag, before, updated_at in changes]
    action = BulkFlagAction(run=run, user=by, description=description[:200], before={"was": rows, "left": after})
    if changes:
        action.save()
    return action


def format_flag(run: Run, label: str, reason: str) -> str:
    """Returns the reason and the label in the user's language."""
    if not reason:
        return _("“{label}”").format(label=_(label))
    names = {str(entry["key"]): str(entry["name"]) for entry in run.project.reasons}
    return _("“{reason}” ({label})").format(reason=_(names.get(reason, reason)), label=_(label))
