"""Makes the samples of dumps visible: index rows, step statistics and one change notification, in one transaction."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from django.db import transaction
from django.utils import timezone

from rollouts import storage
from rollouts.indexing import append_chunks, correctness
from rollouts.indexing.forgotten import drop_forgotten_artifact, drop_forgotten_bytes
from rollouts.indexing.reading import BAD_LINE, FORGOTTEN, ClaimLostError, DumpReading
from rollouts.indexing.reconcile import reconcile_step
from rollouts.indexing.renamed_samples import find_renamed_samples, move_user_records
from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.ingest import mark_superseded_steps
from rollouts.live import delay_notifications, notify_run_changed
from rollouts.models import Dump, Segment, Step
from rollouts.samples import BODY_SCHEMA_VERSION, rename_results


def publish_samples(readings: Sequence[DumpReading]) -> None:
    """Makes the samples of dumps of one step visible, all at once.

    Locks the step's row first, then those of the dumps, then the run's. Removes the body files if it fails.
    """
    with transaction.atomic(), ExitStack() as files:
        for reading in readings:
            files.enter_context(storage.delete_on_failure(storage.get_body_key(reading.path)))
        dump = readings[0].dump
        assert dump.step is not None
        step = Step.objects.get_locked(dump.run, dump.attempt, dump.split, dump.step_kind, dump.step)
        old_segments = [replace_body(step, reading) for reading in readings]
        rows = reconcile_step(step, {reading.dump: reading.index_rows for reading in readings})
        with delay_notifications():
            for reading in readings:
                if reading.dump.state == Dump.State.INDEXED:
                    append_chunks.requeue_later_chunks(reading.dump, reading.index_rows.ids())
                finish_dump(reading)
        recompute_step_stats(step, None if correctness.apply_correctness_rule(step) else rows)
        mark_superseded_steps(dump.run)
        for old in old_segments:
            if old and not old.dumps.exists():
                old.delete()
                # An export may still read the file after the commit.
                transaction.on_commit(partial(storage.touch_file, storage.get_body_key(old.path)))


def replace_body(step: Step, reading: DumpReading) -> Segment | None:
    """Returns the segment that the dump had. The new one is saved, but the dump's row is not yet."""
    dump = reading.dump
    append_chunks.check_earlier_chunks(dump, reading.earlier, reading.index_rows.ids())
    old, count = dump.segment, reading.index_rows.count
    renamed = find_renamed_samples(dump, count, reading.index_rows.ids())
    move_user_records(step, renamed)
    rename_results(step, renamed)
    dump.segment = None
    if reading.body_bytes is not None:
        dump.segment = Segment.objects.create(
            run=dump.run,
            split=dump.split,
            path=reading.path,
            rows=count,
            bytes=reading.body_bytes,
            schema=BODY_SCHEMA_VERSION,
        )
    dump.segment_offset, dump.rows = 0, count
    return old


def finish_dump(reading: DumpReading) -> None:
    """Updates the dump's row and notifies. Removes raw bytes and artifacts that contain a forgotten prompt.

    Raises ClaimLostError if this worker has lost its claim.
    """
    dump = reading.dump
    claimed = Dump.objects.filter(pk=dump.pk, state=Dump.State.INDEXING, tries=dump.tries)
    # Without a new body the dump keeps its own, which compaction may move at any time.
    body = {"segment": dump.segment, "segment_offset": dump.segment_offset} if reading.path else {}
    if not claimed.update(
        state=dump.state if dump.state == Dump.State.SUPERSEDED else Dump.State.INDEXED,
        message="",
        step=dump.step,
        format=dump.format,
        rows=dump.rows,
        left_out=dict(reading.skipped),
        rejected=reading.skipped[BAD_LINE],
        problems=reading.problems,
        indexed_at=timezone.now(),
        **body,
    ):
        raise ClaimLostError("Another worker has taken it over.")
    if reading.forgotten and not dump.is_final:
        if dump.is_from_artifact:
            drop_forgotten_artifact(dump)
        elif reading.skipped[FORGOTTEN]:
            drop_forgotten_bytes(dump)
    notify_run_changed(dump.run, split=dump.split, step=dump.step)
