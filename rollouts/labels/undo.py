"""Undoes the newest action of a user, and reads the history of a label.

Undo restores only labels that nobody changed since: a label that was changed and changed back is not restored. A
restored label gets its old `updated_at` again, so that the action before it can be undone too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import NotFoundError
from rollouts.labels.states import (
    UPDATED_FIELDS,
    LabelState,
    build_history_row,
    format_updated_at,
    read_changes,
    set_state,
)
from rollouts.labels.store import UNDO_WINDOW, UPDATED_ROWS, is_counted, lock_steps, notify_changes
from rollouts.live import notify_topics
from rollouts.models import Label, LabelAction, LabelChange, QueueSlot, Run
from rollouts.projects import record_audit_entry


@dataclass(frozen=True, slots=True)
class UndoResult:
    """`restored_count` labels were restored, `unchanged_count` labels had changed since and were not. `sample` is set
    if the action was on one sample. `names` are those of the restored labels."""

    description: str
    restored_count: int
    unchanged_count: int
    sample: str
    names: frozenset[str] = frozenset()


@transaction.atomic
def undo_label_action(run: Run, by: User) -> UndoResult:
    """Undoes the user's newest action in this run. If it was the answer to an item of a queue, the item is given back.
    Raises NotFoundError if there is nothing to undo."""
    undoable = LabelAction.objects.select_for_update(no_key=True).filter(
        run=run, user=by, undone_at=None, created_at__gt=timezone.now() - UNDO_WINDOW
    )
    action = undoable.order_by("-created_at", "-pk").first()
    if action is None:
        raise NotFoundError(_("Nothing to undo in this run. You can undo your own actions of the last 24 hours."))
    changes = {change.label: change for change in read_changes(action)}
    counted = [(step, name) for step, name in Label.objects.filter(pk__in=changes).values_list("step", "name")]
    lock_steps({step for step, name in counted if is_counted(name)})
    labels = list(Label.objects.select_for_update(no_key=True).filter(pk__in=changes).order_by("pk"))
    now = timezone.now()
    restored = [
        label
        for label in labels
        if LabelState.of_label(label) == changes[label.pk].after
        and format_updated_at(label) == changes[label.pk].updated_at
    ]
    history = [build_history_row(row, LabelState.of_label(row), row.updated_at, undone=True) for row in restored]
    former = User.objects.filter(pk__in={change.user_before for change in changes.values() if change.user_before})
    users = set(former.values_list("pk", flat=True))  # who may be gone
    current_again: set[tuple[int, datetime]] = set()
    for label in restored:
        change = changes[label.pk]
        before_at = datetime.fromisoformat(change.updated_at_before) if change.updated_at_before else None
        if before_at:
            current_again.add((label.pk, before_at))
        set_state(label, change.before or LabelState.of_label(label)._replace(withdrawn=True), before_at or now)
        if change.user_before in users:
            label.user_id = change.user_before
    replaced = LabelChange.objects.filter(label__in=[pk for pk, _at in current_again]).values_list("pk", "label", "at")
    LabelChange.objects.filter(pk__in=[pk for pk, *state in replaced if tuple(state) in current_again]).delete()
    LabelChange.objects.bulk_create(history)
    Label.objects.bulk_update(restored, UPDATED_FIELDS, batch_size=UPDATED_ROWS)
    action.undone_at = now
    action.save(update_fields=["undone_at"])
    notify_changes(run, restored)
    sample_ids = sorted({label.sample for label in labels})
    are_flags = all(label.is_flag for label in restored)
    if not are_flags and QueueSlot.objects.reopen_undone(run, by):
        notify_topics("queues", sparse=True)
    names = frozenset(label.name for label in restored)
    detail: dict[str, Any] = {"run": run.uid, "samples": sample_ids[:20], "sample_count": len(sample_ids)}
    detail |= {"flags" if are_flags else "labels": len(restored), "name": sorted(names)}
    verb = "flag.undo" if are_flags else "label.undo"
    record_audit_entry(by, verb, action.description, project=run.project, **detail)
    sample = sample_ids[0] if len(sample_ids) == 1 else ""
    return UndoResult(action.description, len(restored), len(changes) - len(restored), sample, names)


def load_history(label: Label) -> list[LabelChange]:
    """Returns the earlier states of a label, newest first."""
    return list(label.changes.select_related("rubric").order_by("-at", "-pk"))


def serialize_change(row: LabelChange) -> dict[str, Any]:
    """Returns an earlier state as a JSON object."""
    return {
        "value": row.value,
        "rationale": row.rationale,
        "start": row.start,
        "end": row.end,
        "withdrawn": row.withdrawn,
        "undone": row.undone,
        "rubric": row.version,
        "at": row.at,
    }
