"""Many runs at once: tagged, put out of the way and brought back, indexed anew, each by whom in the audit log; and what
they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError
from rollouts.indexing import reindex_run
from rollouts.ingest import parse_tags
from rollouts.live import notify_run_changed
from rollouts.models import Dump, Flag, Pin, Run, Step
from rollouts.projects import record_audit_entry
from rollouts.runs import trash


@transaction.atomic
def tag_runs(runs: Sequence[Run], by: User, word: str, *, off: bool = False) -> int:
    """Gives runs a tag, or takes it `off`, all of them or none; returns how many changed. Raises BadInput for a word
    that is no tag, and where a run has too many."""
    changed = 0
    rows = Run.objects.select_for_update(of=("self",), no_key=True).filter(pk__in=[run.pk for run in runs])
    for run in rows.order_by("pk"):
        kept = [one for one in run.tags if one != word]
        wanted = kept if off else run.tags if word in run.tags else parse_tags([*run.tags, word])
        if wanted == run.tags:
            continue
        run.tags = wanted
        changed += saved(run, "tags", by, "run.untag" if off else "run.tag", tag=word)
    return changed


def archive_runs(runs: Sequence[Run], by: User, *, back: bool = False) -> int:
    """Takes runs out of the ordinary list, or puts them `back`; nothing of them is lost."""
    changed = 0
    for run in runs:
        if (run.archived_at is None) == back:
            continue
        run.archived_at = None if back else timezone.now()
        changed += saved(run, "archived_at", by, "run.unarchive" if back else "run.archive")
    return changed


@transaction.atomic
def reindex_runs(runs: Sequence[Run], by: User) -> int:
    """What their dumps hold is read anew from the bytes that were kept; returns how many dumps wait for it."""
    waiting = 0
    for run in runs:
        count = reindex_run(run)
        record_audit_entry(by, "run.index", run.name, project=run.project, uid=run.uid, dumps=count)
        notify_run_changed(run)
        waiting += count
    return waiting


@transaction.atomic
def move_runs_to_trash(runs: Sequence[Run], by: User) -> None:
    """Puts runs into the bin, all of them or none. Raises Conflict that names those with pins: a pin that somebody
    sets meanwhile waits for the rows that are locked here, or is seen."""
    locked = Run.objects.select_for_update(of=("self",)).select_related("project").order_by("pk")
    rows = list(locked.filter(pk__in=[run.pk for run in runs]))
    pinned = [run.name for run in rows if run.pins.filter(removed_at=None).exists()]
    if pinned:
        said = _("Nothing was deleted: steps of {names} are pinned. Remove the pins first.")
        raise ConflictError(said.format(names=", ".join(pinned[:5])))
    for run in rows:
        trash.move_run_to_trash(run, by)


def saved(run: Run, field: str, by: User, verb: str, **detail: str) -> int:
    with transaction.atomic():
        run.save(update_fields=[field])
        record_audit_entry(by, verb, run.name, project=run.project, uid=run.uid, **detail)
        notify_run_changed(run)
    return 1


@dataclass(frozen=True, slots=True)
class RunSize:
    """What a run holds, and what would go with it."""

    steps: int = 0
    samples: int = 0
    flags: int = 0
    pins: int = 0
    bytes: int = 0


def load_run_sizes(runs: Sequence[Run]) -> dict[int, RunSize]:
    """By run id, in four queries."""
    ids = [run.pk for run in runs]
    steps = Step.objects.filter(run__in=ids).order_by().values_list("run")
    told = {run: (count, samples) for run, count, samples in steps.annotate(Count("pk"), Sum("samples"))}
    kept = Dump.objects.filter(run__in=ids).order_by().values_list("run").annotate(Sum("bytes"))
    flags = Flag.objects.filter(run__in=ids, withdrawn_at=None).order_by().values_list("run").annotate(Count("pk"))
    pins = Pin.objects.filter(run__in=ids, removed_at=None).order_by().values_list("run").annotate(Count("pk"))
    by_bytes, by_flags, by_pins = dict(kept), dict(flags), dict(pins)
    return {
        pk: RunSize(*told.get(pk, (0, 0)), by_flags.get(pk, 0), by_pins.get(pk, 0), by_bytes.get(pk) or 0) for pk in ids
    }
