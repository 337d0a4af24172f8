"""Actions on runs: tag, archive, re-index, delete and restore. Each one writes an audit entry.

A deleted run is in the trash. It can be restored, and the sweep removes it permanently after `TRASH_RETENTION`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, NotFoundError
from rollouts.indexing import reindex_run
from rollouts.ingest import parse_tags
from rollouts.live import notify_run_changed
from rollouts.models import FLAG_NAME, Dump, Label, Pin, QueueItem, Run, Step
from rollouts.projects import record_audit_entry

TRASH_RETENTION = timedelta(days=7)


@transaction.atomic
def tag_runs(runs: Sequence[Run], by: User, tag: str, *, off: bool = False) -> int:
    """Adds a tag to all runs, or removes it if `off`. Returns the number of changed runs.

    Raises InvalidInputError if the tag is invalid or a run has too many, and then changes nothing.
    """
    changed = 0
    rows = Run.objects.select_for_update(of=("self",), no_key=True).filter(pk__in=[run.pk for run in runs])
    for run in rows.order_by("pk"):
        others = [other for other in run.tags if other != tag]
        tags = others if off else run.tags if tag in run.tags else parse_tags([*run.tags, tag])
        if tags != run.tags:
            run.tags = tags
            save_field(run, "tags", by, "run.untag" if off else "run.tag", tag=tag)
            changed += 1
    return changed


def archive_runs(runs: Sequence[Run], by: User, *, back: bool = False) -> int:
    """Hides runs from the default list, or shows them again if `back`. Returns the number of changed runs."""
    changed = [run for run in runs if (run.archived_at is None) != back]
    for run in changed:
        run.archived_at = None if back else timezone.now()
        save_field(run, "archived_at", by, "run.unarchive" if back else "run.archive")
    return len(changed)


@transaction.atomic
def reindex_runs(runs: Sequence[Run], by: User) -> int:
    """Queues the dumps of runs to be read again from the stored bytes. Returns the number of dumps."""
    total = 0
    for run in runs:
        count = reindex_run(run)
        record_audit_entry(by, "run.index", run.name, project=run.project, uid=run.uid, dumps=count)
        notify_run_changed(run)
        total += count
    return total


@transaction.atomic
def move_runs_to_trash(runs: Sequence[Run], by: User) -> None:
    """Deletes all runs. Raises ConflictError if some have pins, and then deletes none.

    The row locks make a concurrent pin wait. A pin that was set before is found.
    """
    locked = Run.objects.select_for_update(of=("self",)).select_related("project").order_by("pk")
    rows = list(locked.filter(pk__in=[run.pk for run in runs]))
    pinned = [run.name for run in rows if run.pins.filter(removed_at=None).exists()]
    if pinned:
        message = _("Nothing was deleted: steps of {names} are pinned. Remove the pins first.")
        raise ConflictError(message.format(names=", ".join(pinned[:5])))
    for run in rows:
        move_run_to_trash(run, by)


def move_run_to_trash(run: Run, by: User, *, force: bool = False) -> Run:
    """Deletes a run. Raises ConflictError if it has pins, unless `force` deletes them too."""
    if run.deleted_at is not None:
        return run
    pinned = run.pins.filter(removed_at=None).count()
    if pinned and not force:
        message = _("Pinned steps: {count}. Remove the pins first, or delete the run with `?force`.")
        raise ConflictError(message.format(count=pinned))
    run.deleted_at = timezone.now()
    return save_field(run, "deleted_at", by, "run.delete")


def restore_run(run: Run, by: User) -> Run:
    """Restores a run from the trash. Raises NotFoundError if it was deleted permanently meanwhile."""
    if run.deleted_at is None:
        return run
    with transaction.atomic():
        if not Run.objects.select_for_update(of=("self",)).filter(pk=run.pk).exists():
            raise NotFoundError(_("The run was deleted permanently."))
        run.deleted_at = None
        return save_field(run, "deleted_at", by, "run.restore")


@transaction.atomic
def save_field(run: Run, field: str, by: User, verb: str, **detail: str) -> Run:
    run.save(update_fields=[field])
    record_audit_entry(by, verb, run.name, project=run.project, uid=run.uid, **detail)
    notify_run_changed(run)
    return run


@dataclass(frozen=True, slots=True)
class RunSize:
    """What is deleted with a run. `labels` are those that are not flags, `queue_items` those of review queues."""

    steps: int = 0
    samples: int = 0
    flags: int = 0
    labels: int = 0
    queue_items: int = 0
    pins: int = 0
    bytes: int = 0


def load_run_sizes(runs: Sequence[Run]) -> dict[int, RunSize]:
    """Returns the sizes by run id. Makes five queries."""
    ids = [run.pk for run in runs]

    def aggregate(rows: QuerySet[Any], *totals: Count | Sum) -> dict[int, list[int]]:
        named = {f"total{number}": total for number, total in enumerate(totals)}
        by_run = rows.filter(run__in=ids).order_by().values_list("run").annotate(**named)
        return {run: values for run, *values in by_run}

    steps = aggregate(Step.objects.all(), Count("pk"), Sum("samples"))
    is_flag = Q(name__startswith=FLAG_NAME)
    labels = aggregate(Label.objects.active(), Count("pk", filter=is_flag), Count("pk", filter=~is_flag))
    items = aggregate(QueueItem.objects.all(), Count("pk"))
    pins = aggregate(Pin.objects.filter(removed_at=None), Count("pk"))
    dumps = aggregate(Dump.objects.all(), Sum("bytes"))

    def build_size(pk: int) -> RunSize:
        counted = (*steps.get(pk, [0, 0]), *labels.get(pk, [0, 0]), *items.get(pk, [0]), *pins.get(pk, [0]))
        return RunSize(*counted, *dumps.get(pk, [0]))

    return {pk: build_size(pk) for pk in ids}
