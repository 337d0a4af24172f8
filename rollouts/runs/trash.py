"""The trash: deleted runs wait there, can be restored, and are removed for good after some days."""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.models import User
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError
from rollouts.live import notify_run_changed
from rollouts.models import Run
from rollouts.projects import record_audit_entry

TRASH_RETENTION = timedelta(days=7)


def move_run_to_trash(run: Run, by: User, *, force: bool = False) -> Run:
    """Puts a run into the bin, from which it goes for good after `BIN`, with its pins where that is said with `force`.

    Raises Conflict while pins stand on it.
    """
    pinned = run.pins.filter(removed_at=None).count()
    if pinned and not force and run.deleted_at is None:
        said = _("Pinned steps: {count}. Remove the pins first, or delete the run with `?force`.")
        raise ConflictError(said.format(count=pinned))
    if run.deleted_at is None:
        run.deleted_at = timezone.now()
        run.save(update_fields=["deleted_at"])
        record_audit_entry(by, "run.delete", run.name, project=run.project, uid=run.uid)
        notify_run_changed(run)
    return run


def restore_run(run: Run, by: User) -> Run:
    """Takes a run out of the bin."""
    if run.deleted_at is not None:
        run.deleted_at = None
        run.save(update_fields=["deleted_at"])
        record_audit_entry(by, "run.restore", run.name, project=run.project, uid=run.uid)
        notify_run_changed(run)
    return run
