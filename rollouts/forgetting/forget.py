"""Removes a prompt from the server: rows first, then files. Can be killed at any moment and called again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connection, transaction
from django.utils import timezone

from rollouts.errors import ConflictError
from rollouts.forgetting.evidence import remove_evidence
from rollouts.forgetting.files import drop_artifacts, find_images, remove_pending_files
from rollouts.forgetting.pending import add_pending
from rollouts.forgetting.raw_dumps import drop_raw_dumps
from rollouts.forgetting.rows import remove_samples, rewrite_segments
from rollouts.forgetting.traces import TraceReport, find_traces, parse_prompt_key
from rollouts.lib import clear_all_processes
from rollouts.live import notify_run_changed
from rollouts.maintenance import release_dead_claims
from rollouts.models import Dump, ForgottenPrompt, Project
from rollouts.projects import record_audit_entry
from rollouts.storage import get_image_key

MAX_ROUNDS = 3  # a dump that was indexed meanwhile, or a new link, is found by the next round
MAX_INDEX_WAIT_SECONDS = 300.0
CHECKPOINT_TRIES = 50
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """`found` is what the first round found. `left` is what a last search still found, with what only people can
    change. `files` could not be removed yet: a backup runs, or an upload uses them."""

    found: TraceReport
    left: TraceReport
    files: list[str]

    @property
    def is_complete(self) -> bool:
        return self.left.is_empty and not self.files


def forget_prompt(
    project: Project, key: str, *, containing: bool = False, user: str = "", progress: Progress = lambda _: None
) -> ForgetResult:
    """Removes the prompt and all its samples from the server, not from backups. `containing` also removes samples of
    other prompts that contain the text. `user` is the account that runs the command.

    Raises InvalidInputError, and ConflictError if workers hold a dump for too long.
    """
    row = ForgottenPrompt.objects.get_or_create(project=project, key=parse_prompt_key(key), defaults={"user": user})[0]
    ForgottenPrompt.objects.filter(pk=row.pk).update(finished_at=None)
    erase_deleted_values()
    progress("Waiting until workers have indexed what they read already.")
    wait_for_indexing(project)
    progress("Searching.")
    found = find_traces(project, key, containing)
    report = remove_in_rounds(row, found, containing, progress)
    files = remove_pending_files(row)
    for run in project.runs.all():
        notify_run_changed(run)
    clear_all_processes()
    progress("Cleaning the database.")
    erase_database_pages()
    finish(row, found, is_complete=report.is_empty and not files)
    return ForgetResult(found, report, files)


def remove_in_rounds(
    row: ForgottenPrompt,
    report: TraceReport,
    containing: bool,
    progress: Progress = lambda _: None,
    *,
    with_orphans: bool = True,
) -> TraceReport:
    """Removes what a report has, and what comes meanwhile. Returns what is left. `with_orphans` is False in a backup,
    where the files stay until all backups are changed."""
    for _round in range(MAX_ROUNDS):
        if report.is_empty:
            break
        progress("Removing: " + ", ".join(f"{count:,} {name}" for name, count in report.counts.items() if count))
        remove_traces(row, report)
        if with_orphans:
            remove_pending_files(row)
        report = find_traces(row.project, row.key, containing, with_orphans=with_orphans)
    return report


def remove_traces(row: ForgottenPrompt, report: TraceReport) -> None:
    """The samples go last: while one of them remains, a command that was killed finds the text again."""
    bodies, dumps = report.bodies, report.dumps
    with transaction.atomic():
        row.aliases = sorted({*row.aliases, *bodies.keys} - {row.key})
        ForgottenPrompt.objects.filter(pk=row.pk).update(aliases=row.aliases)
        images = [get_image_key(owner, digest) for owner, digest in find_images(dumps, bodies)]
        add_pending(row, images)
        add_pending(row, report.raw_orphans)
        add_pending(row, [f"bodies/{path}" for path in bodies.orphans])
    drop_artifacts(row, report.artifacts)
    drop_raw_dumps(row, report.raw)
    remove_evidence(row, report.evidence, bodies.sample_ids, report.text)
    rewrite_segments(row, bodies.stale)
    shared = {dump.segment.path for dump in dumps if dump.segment}
    remove_samples(row, bodies, report.text)
    rewrite_segments(row, shared)  # other dumps use the rest of these files


def wait_for_indexing(project: Project) -> None:
    """Workers that started before the row was written do not leave the prompt out. Raises ConflictError."""
    release_dead_claims()
    indexing = Dump.objects.filter(run__project=project, state=Dump.State.INDEXING)
    claims = set(indexing.values_list("pk", "tries"))
    deadline = time.monotonic() + MAX_INDEX_WAIT_SECONDS
    while claims := claims & set(indexing.values_list("pk", "tries")):
        if time.monotonic() > deadline:
            raise ConflictError(f"Dump {min(claims)[0]} is being indexed. Run the command again later.")
        time.sleep(0.2)


def erase_deleted_values() -> None:
    """SQLite overwrites what it deletes, from now on in this process."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA secure_delete=ON")


def erase_database_pages() -> None:
    """Removes old versions of rows: from the file and the log of SQLite, from the tables of PostgreSQL."""
    if connection.in_atomic_block:  # only in tests
        return
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")
        for _try in range(CHECKPOINT_TRIES if connection.vendor == "sqlite" else 0):
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if not cursor.fetchone()[0]:
                break
            time.sleep(0.1)  # a reader still uses the log


def finish(row: ForgottenPrompt, found: TraceReport, *, is_complete: bool) -> None:
    counts = row.counts or found.counts
    with transaction.atomic():
        finished_at = timezone.now() if is_complete else None
        ForgottenPrompt.objects.filter(pk=row.pk).update(counts=counts, finished_at=finished_at)
        record_audit_entry(None, "prompt.forget", row.key, project=row.project, account=row.user, **found.counts)
