"""What the sweep does: finds what is overdue, expires what nobody will ask for. Cheap when there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from django.db import transaction
from django.db.models import Count
from django.utils import timezone

from rollouts.lib import has_process_ended
from rollouts.live import notify_run_changed
from rollouts.metrics import MIN_ROWS_TO_COMPACT
from rollouts.models import Artifact, Blob, Dump, DumpQuerySet, Entry, MetricRow, Run
from rollouts.pins import find_bound_pins
from rollouts.runs import TRASH_RETENTION
from rollouts.storage import delete_unused_blobs, get_blob_path, get_body_file_path, get_data_root, get_raw_dump_path

AGAIN = timedelta(seconds=30)  # a dump that was sent again is not sent once more before this
MOST = 500  # dumps per sweep: a long queue is already queued
PART_LIFETIME_SECONDS = 24 * 3600  # seconds a half-sent upload may rest
ORPHAN_LIFETIME_SECONDS = 3600  # seconds after which a file that no row names is nobody's


def release_dead_claims() -> int:
    """Gives back the claims of processes of this host that have ended; returns how many."""
    claimed = Dump.objects.filter(state=Dump.State.INDEXING).exclude(claimed_by="")
    dead = [name for name in claimed.values_list("claimed_by", flat=True).distinct() if has_process_ended(name)]
    if not dead:
        return 0
    return claimed.filter(claimed_by__in=dead).update(state=Dump.State.RECEIVED, due_at=timezone.now())


def fail_exhausted_dumps() -> int:
    """Fails the dumps that have killed their worker every time, so that they cannot go on doing it."""
    now = timezone.now()
    tired = list(Dump.objects.overdue(now).filter(tries__gte=Dump.MAX_TRIES).select_related("run")[:MOST])
    for dump in tired:
        Dump.objects.filter(pk=dump.pk, state=dump.state, tries=dump.tries).update(
            state=Dump.State.FAILED,
            message=f"Indexing ended without an answer {dump.tries} times (a worker killed, or out of memory?); "
            "the bytes are kept and can be indexed again.",
        )
        notify_run_changed(dump.run, split=dump.split, step=dump.step)
    return len(tired)


def take_overdue_dumps() -> list[int]:
    """Ids of the dumps to send again, oldest first; they are due again after `AGAIN`."""
    return sent(Dump.objects.overdue(timezone.now()))


def take_waiting_dumps() -> list[int]:
    """As `overdue`, of all that waits: a worker that was killed took messages with it."""
    return sent(Dump.objects.filter(state=Dump.State.RECEIVED, tries=0) | Dump.objects.overdue())


def sent(dumps: DumpQuerySet) -> list[int]:
    late = list(dumps.order_by("pk").values_list("pk", flat=True)[:MOST])
    if late:
        Dump.objects.filter(pk__in=late).update(due_at=timezone.now() + AGAIN)
    return late


def find_due_artifacts() -> list[int]:
    """Artifacts whose bytes are all here and whose check was not begun, or died."""
    return list(Artifact.objects.due().order_by("due_at").values_list("pk", flat=True)[:MOST])


def find_runs_with_due_metrics() -> list[int]:
    """Runs with enough loose metric rows for a block. Only runs with recent news can have become due."""
    recent = Run.objects.filter(seen_at__gt=timezone.now() - timedelta(minutes=10)).values("pk")
    loose = MetricRow.objects.filter(run__in=recent).values("run").annotate(rows=Count("pk"))
    return list(loose.filter(rows__gte=MIN_ROWS_TO_COMPACT).values_list("run", flat=True))


def delete_stale_uploads() -> int:
    """Removes uploads that were begun and left; returns how many files went."""
    incoming = get_data_root() / "incoming"
    left = [
        *find_older_files(incoming.glob("*"), ORPHAN_LIFETIME_SECONDS),
        *find_older_files((incoming / "parts").glob("*"), PART_LIFETIME_SECONDS),
    ]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def find_older_files(paths: Iterator[Path], seconds: float) -> Iterator[Path]:
    before = time.time() - seconds
    for path in paths:
        try:
            if path.is_file() and path.stat().st_mtime < before:
                yield path
        except FileNotFoundError:
            continue


def empty_trash() -> int:
    """Removes the runs that have been in the bin for a week: rows, bodies and raw bytes; returns how many.

    One whose steps are replayed by a run that is bound to them stays until that run has ended.
    """
    gone = list(
        Run.objects.filter(deleted_at__lt=timezone.now() - TRASH_RETENTION).exclude(pins__in=find_bound_pins())[:10]
    )
    for run in gone:
        delete_run_permanently(run)
    return len(gone)


def delete_run_permanently(run: Run) -> None:
    """Removes a run for good. Rows first: a file without a row is litter, a row without its file is a wound.

    Plans that replayed its steps lose those lines, in old revisions too: nothing could be replayed of them.
    """
    own = list(Blob.objects.filter(artifacts__run=run).distinct())
    Entry.objects.filter(pin__run=run).delete()
    bodies = [get_body_file_path(path) for path in run.segments.values_list("path", flat=True)]
    hashes = set(run.dumps.values_list("sha256", flat=True))
    project = run.project_id
    run.delete()
    shared = set(Dump.objects.filter(run__project=project, sha256__in=hashes).values_list("sha256", flat=True))
    delete_unused_blobs(own)
    for path in bodies:
        path.unlink(missing_ok=True)
    for path in find_older_files((get_raw_dump_path(project, sha256) for sha256 in hashes - shared), 60):
        path.unlink(missing_ok=True)


def delete_unpinned_bytes() -> int:
    """Removes bytes that came for pins which were all removed a week ago; returns how many artifacts wait again.

    What was sent without a pin asking for it stays with its run.
    """
    state = Artifact.State
    fetched = Artifact.objects.filter(send_now=False, state__in=(state.UPLOADING, state.READY, state.UNSAFE))
    young = fetched.filter(pins__removed_at__gt=timezone.now() - TRASH_RETENTION)
    left = fetched.filter(pins__isnull=False).exclude(pk__in=Artifact.objects.held()).exclude(pk__in=young)
    rows = list(left.distinct().select_related("run")[:MOST])
    for row in rows:
        own = list(row.blobs.all())
        with transaction.atomic():
            row.blobs.clear()
            Artifact.objects.filter(pk=row.pk).update(
                state=state.WAITING,
                message="",
                missing=len(row.files),
                ready_at=None,
                tries=0,
                due_at=timezone.now(),
            )
            notify_run_changed(row.run, split=row.split, step=row.step, topics=("pins",))
        delete_unused_blobs(own)
    return len(rows)


def delete_orphan_blobs() -> int:
    """Removes bytes of artifacts that no row names (a process died between file and row), and rows that no artifact
    names; returns how many."""
    old = list(find_older_files((get_data_root() / "blobs").rglob("*"), ORPHAN_LIFETIME_SECONDS))
    rows = Blob.objects.filter(sha256__in={path.name for path in old}) if old else Blob.objects.none()
    known = {get_blob_path(project, sha256) for project, sha256 in rows.values_list("project", "sha256")}
    nobodys = [path for path in old if path not in known]
    for path in nobodys:
        path.unlink(missing_ok=True)
    before = timezone.now() - timedelta(seconds=ORPHAN_LIFETIME_SECONDS)
    return len(nobodys) + delete_unused_blobs(Blob.objects.filter(artifacts=None, created_at__lt=before))
