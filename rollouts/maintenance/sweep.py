"""The steps of the sweep: find overdue work and remove expired data. Cheap when there is nothing to do."""

import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.db import transaction
from django.db.models import Count, QuerySet
from django.utils import timezone

from rollouts.lib import has_process_ended
from rollouts.live import notify_run_changed
from rollouts.metrics import MIN_ROWS_TO_COMPACT
from rollouts.models import Artifact, Blob, Dump, Entry, MetricRow, Project, Run
from rollouts.pins import find_bound_pins
from rollouts.runs import TRASH_RETENTION
from rollouts.storage import (
    PART_LIFETIME_SECONDS,
    delete_file,
    delete_images,
    delete_unused_blobs,
    delete_unused_raw_files,
    get_blob_key,
    get_body_key,
    get_data_root,
    list_files,
    list_folders,
    skip_during_backup,
)

RESEND_DELAY = timedelta(seconds=30)  # minimum time between two sends of one dump
MAX_ROWS_PER_SWEEP = 500  # a long queue does not need more
RECENT = timedelta(minutes=10)
OWNER_PATTERN = re.compile(r"(run|project)-\d+")
ORPHAN_LIFETIME_SECONDS = 3600  # a file without a row is removed after this


def release_dead_claims() -> int:
    """Releases the claims of processes of this host that have ended. Returns their number."""
    claimed_dumps = Dump.objects.filter(state=Dump.State.INDEXING).exclude(claimed_by="")
    processes = claimed_dumps.values_list("claimed_by", flat=True).distinct()
    dead = [process for process in processes if has_process_ended(process)]
    lost = claimed_dumps.filter(claimed_by__in=dead)  # no query if `dead` is empty
    return lost.update(state=Dump.State.RECEIVED, due_at=timezone.now())


def take_overdue_dumps() -> list[int]:
    """Returns the ids of the dumps to send again, oldest first. They are due again after `RESEND_DELAY`.

    Dumps that killed a worker at every try fail instead.
    """
    overdue = Dump.objects.overdue().order_by("pk").values_list("pk", "tries")[:MAX_ROWS_PER_SWEEP]
    tries = dict(overdue)
    exhausted = [pk for pk, count in tries.items() if count >= Dump.MAX_TRIES]
    if exhausted:
        fail_exhausted_dumps(exhausted)
    return delay_next_send([pk for pk in tries if pk not in exhausted])


def fail_exhausted_dumps(ids: list[int]) -> None:
    """Marks dumps as failed, unless a worker changed their state meanwhile."""
    for dump in Dump.objects.overdue().filter(pk__in=ids).select_related("run"):
        Dump.objects.filter(pk=dump.pk, state=dump.state, tries=dump.tries).update(
            state=Dump.State.FAILED,
            message=f"Indexing ended without an answer {dump.tries} times (a worker killed, or out of memory?); "
            "the bytes are kept and can be indexed again.",
        )
        notify_run_changed(dump.run, split=dump.split, step=dump.step)


def take_waiting_dumps() -> list[int]:
    """Returns the ids of all waiting dumps, as `take_overdue_dumps`. A killed worker loses its messages."""
    waiting = Dump.objects.filter(state=Dump.State.RECEIVED, tries=0) | Dump.objects.overdue()
    return delay_next_send(list(waiting.order_by("pk").values_list("pk", flat=True)[:MAX_ROWS_PER_SWEEP]))


def delay_next_send(ids: list[int]) -> list[int]:
    """Sets the next due time of these dumps. Returns their ids."""
    if ids:
        Dump.objects.filter(pk__in=ids).update(due_at=timezone.now() + RESEND_DELAY)
    return ids


def find_due_artifacts() -> list[int]:
    """Returns the ids of complete artifacts whose check has not started, or died."""
    return list(Artifact.objects.due().order_by("due_at").values_list("pk", flat=True)[:MAX_ROWS_PER_SWEEP])


def find_runs_with_due_metrics(*, is_recent: bool = True) -> list[int]:
    """Returns the ids of runs with enough metric rows for a block. `is_recent`: only of runs that were updated a moment
    ago, which are few. Others are due if no worker ran when their last rows arrived."""
    rows = MetricRow.objects.all()
    if is_recent:
        rows = rows.filter(run__in=Run.objects.filter(seen_at__gt=timezone.now() - RECENT).values("pk"))
    row_counts = rows.order_by().values("run").annotate(rows=Count("pk"))
    return list(row_counts.filter(rows__gte=MIN_ROWS_TO_COMPACT).values_list("run", flat=True))


def delete_stale_uploads() -> int:
    """Removes the files of abandoned uploads. Returns their number."""
    incoming = get_data_root() / "incoming"
    stale_files = [
        *find_older_files(incoming.glob("*"), ORPHAN_LIFETIME_SECONDS),
        *find_older_files((incoming / "parts").glob("*"), PART_LIFETIME_SECONDS),
    ]
    for path in stale_files:
        path.unlink(missing_ok=True)
    return len(stale_files)


def find_older_files(paths: Iterator[Path], seconds: float) -> Iterator[Path]:
    """Yields the files that were last modified more than `seconds` ago. Skips files that are removed meanwhile."""
    max_mtime = time.time() - seconds
    for path in paths:
        try:
            if path.is_file() and path.stat().st_mtime < max_mtime:
                yield path
        except FileNotFoundError:
            continue


@skip_during_backup
def empty_trash() -> int:
    """Removes runs that have been in the trash for a week: rows, bodies and raw bytes. Returns their number.

    A run whose pins are bound to another run by a replay plan remains until that run has ended.
    """
    return sum(delete_expired_run(run) for run in find_expired_runs()[:10])


def find_expired_runs() -> QuerySet[Run]:
    expired = Run.objects.filter(deleted_at__lt=timezone.now() - TRASH_RETENTION)
    return expired.exclude(pins__in=find_bound_pins())


def delete_expired_run(run: Run) -> bool:
    """Returns False, and removes nothing, if the run was restored or bound to a plan since it was listed."""
    with transaction.atomic():
        Run.objects.select_for_update(of=("self",)).filter(pk=run.pk).first()
        if not find_expired_runs().filter(pk=run.pk).exists():
            return False
        files = delete_run_rows(run)
    delete_run_files(files)
    return True


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What no row names any more after the rows of a run are deleted."""

    project: int
    image_owner: str
    body_keys: Sequence[str]
    hashes: Collection[str]
    blobs: Sequence[Blob]


def delete_run_permanently(run: Run) -> None:
    """Removes a run. Deletes rows first: a row without its file is an error, a file without a row is not."""
    delete_run_files(delete_run_rows(run))


def delete_run_rows(run: Run) -> RunFiles:
    """Replay plans lose the entries of the run's pins, in old revisions too, because these steps cannot be replayed any
    more."""
    files = RunFiles(
        project=run.project_id,
        image_owner=run.image_owner,
        body_keys=[get_body_key(path) for path in run.segments.values_list("path", flat=True)],
        hashes=set(run.dumps.values_list("sha256", flat=True)),
        blobs=list(Blob.objects.filter(artifacts__run=run).distinct()),
    )
    Entry.objects.filter(pin__run=run).delete()
    run.delete()
    return files


def delete_run_files(files: RunFiles) -> None:
    delete_unused_blobs(files.blobs)
    delete_images(files.image_owner)
    for key in files.body_keys:
        delete_file(key)
    delete_unused_raw_files(files.project, files.hashes)


@skip_during_backup
def delete_orphan_images() -> int:
    """Removes the images of runs and projects that are gone. Returns the number of their owners."""
    found = {owner for owner in list_folders("images/") if OWNER_PATTERN.fullmatch(owner)}
    runs = {f"run-{pk}" for pk in Run.objects.values_list("pk", flat=True)} if found else set()
    orphans = found - runs - {f"project-{pk}" for pk in Project.objects.values_list("pk", flat=True)}
    for owner in orphans:
        delete_images(owner)
    return len(orphans)


@skip_during_backup
def delete_unpinned_bytes() -> int:
    """Removes the bytes of artifacts whose pins were all removed a week ago. Returns the number of these artifacts.

    They are in the state `waiting` again. Bytes that were sent without a pin (`send_now`) remain with their run.
    """
    expired = find_unpinned_artifacts().select_related("run__project")[:MAX_ROWS_PER_SWEEP]
    return sum(delete_artifact_bytes(artifact) for artifact in expired)


def find_unpinned_artifacts() -> QuerySet[Artifact]:
    state = Artifact.State
    requested = Artifact.objects.filter(send_now=False, state__in=(state.UPLOADING, state.READY, state.UNSAFE))
    recently_unpinned = requested.filter(pins__removed_at__gt=timezone.now() - TRASH_RETENTION)
    unpinned = requested.filter(pins__isnull=False).exclude(pk__in=Artifact.objects.in_use())
    return unpinned.exclude(pk__in=recently_unpinned).distinct()


def delete_artifact_bytes(artifact: Artifact) -> bool:
    """Returns False, and removes nothing, if its step was pinned again since it was listed."""
    with transaction.atomic():
        Project.objects.lock(artifact.run.project)  # as `pin_step` does
        if not find_unpinned_artifacts().filter(pk=artifact.pk).exists():
            return False
        blobs = list(artifact.blobs.all())
        artifact.blobs.clear()
        Artifact.objects.filter(pk=artifact.pk).update(
            state=Artifact.State.WAITING,
            message="",
            missing=len(artifact.files),
            ready_at=None,
            tries=0,
            due_at=timezone.now(),
        )
        notify_run_changed(artifact.run, split=artifact.split, step=artifact.step, topics=("pins",))
    delete_unused_blobs(blobs)
    return True


@skip_during_backup
def delete_orphan_blobs() -> int:
    """Removes blob files without a row (a process died before it wrote the row), and blob rows without an artifact.

    Returns the number of removed blobs.
    """
    max_modified_at = time.time() - ORPHAN_LIFETIME_SECONDS
    old_keys = {file.key for file in list_files("blobs/") if file.modified_at < max_modified_at}
    # All rows: SQLite limits the number of values in a query.
    rows = Blob.objects.values_list("project", "sha256").iterator() if old_keys else iter(())
    orphans = old_keys - {get_blob_key(project, sha256) for project, sha256 in rows}
    for key in orphans:
        delete_file(key)
    max_created_at = timezone.now() - timedelta(seconds=ORPHAN_LIFETIME_SECONDS)
    return len(orphans) + delete_unused_blobs(Blob.objects.filter(artifacts=None, created_at__lt=max_created_at))
