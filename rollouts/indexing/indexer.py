"""Indexes a dump: bytes -> records -> a Parquet body, index rows, step statistics and one change notification.

Everything a reader can see changes in one transaction at the end, under the lock of the step's row.
"""

import io
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from time import perf_counter, sleep
from typing import BinaryIO, cast
from uuid import uuid4

import zstandard
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from rolloutdeck.watch import remove_compression_ending
from rollouts import storage
from rollouts.errors import RolloutError, StorageUnavailableError, UnreadableDumpError, UnsafeDumpError
from rollouts.formats import FORMAT_NAMES, HEAD_BYTES, METRIC_FORMATS, find_table_format, select_format
from rollouts.indexing import append_chunks, artifact_dumps, correctness, split_steps
from rollouts.indexing.forgotten import drop_forgotten_artifact, drop_forgotten_bytes
from rollouts.indexing.reading import BAD_LINE, FORGOTTEN, ClaimLostError, DumpReading, clean_message
from rollouts.indexing.reconcile import find_step_dumps, load_index_rows, reconcile_step
from rollouts.indexing.renamed_samples import find_renamed_samples, move_user_records
from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.ingest import mark_superseded_steps
from rollouts.live import notify_run_changed
from rollouts.metrics import append_points
from rollouts.models import Dump, Run, Segment, Step
from rollouts.samples import BODY_SCHEMA_VERSION, MetricPoint, Record, rename_results
from rollouts.telemetry import DUMPS, INDEX_SECONDS, set_log_ids

log = logging.getLogger(__name__)

OUT_OF_MEMORY = (
    "Indexing was stopped because it needs more than {megabytes} MB of memory. Increase "
    "ROLLOUTDECK_MAX_WORKER_MEMORY_MB of the server and index the run again, or send the data in smaller files."
)
FIRST_RETRY_DELAY = timedelta(seconds=5)  # doubles with each try
MAX_OUTAGE = timedelta(days=1)  # of the disk, the bucket or the database, since the dump arrived
MAX_READINGS = 5  # of a chunk, while the chunks before it are indexed at the same time
DATABASE_PAUSES = (1, 2, 4, 8, 16)  # seconds


def index_dump(dump_id: int) -> None:
    """Indexes a dump, unless another worker does. Safe to call again at any time.

    Raises RolloutError. After a permanent error the dump is `failed` or `unsafe` and has the message. After another
    error it is `received` again and due later, until `Dump.MAX_TRIES`, or for a day while the storage does not answer.
    """
    dump = Dump.objects.select_related("run__project", "attempt").filter(pk=dump_id).first()
    if dump is None or not dump.claim():
        return
    started, is_indexed = perf_counter(), False
    with set_log_ids(run=dump.run.uid, dump=dump.pk):
        try:
            is_indexed = try_to_index(dump)
        finally:
            file_format = dump.format if dump.format in FORMAT_NAMES else "unknown"
            INDEX_SECONDS.labels(file_format).observe(perf_counter() - started)
            DUMPS.labels(file_format, "indexed" if is_indexed else "failed").inc()


def try_to_index(dump: Dump) -> bool:
    """Returns whether the dump is indexed. If not, its row has the reason."""
    try:
        index_claimed_dump(dump)
        return True
    except ClaimLostError as lost:
        log.warning("Dump %s: %s", dump.pk, lost)
    except RolloutError as error:
        log.warning("Dump %s was not indexed: %s", dump.pk, error)
        store_failure(dump, error)
        raise
    except MemoryError:
        log.warning("Dump %s needs more memory than a worker may use", dump.pk)
        store_failure(dump, UnreadableDumpError(OUT_OF_MEMORY.format(megabytes=settings.MAX_WORKER_MEMORY_MB)))
    except (OperationalError, InterfaceError, OSError) as error:
        failure = StorageUnavailableError(f"The disk or the database failed: {error}")
        failure.__cause__ = error
        store_failure_patiently(dump, failure)
        raise
    except DatabaseError as error:
        log.exception("Dump %s could not be stored", dump.pk)
        store_failure_patiently(dump, IndexingError(f"The database refuses the rows: {error}"))
        raise
    except Exception as error:
        log.exception("Dump %s could not be indexed", dump.pk)
        message = f"Internal server error ({type(error).__name__}: {error}); please report it."
        store_failure(dump, IndexingError(message))
        raise
    return False


class IndexingError(RolloutError):
    """A fault of ours. The next try may succeed, for example after a restart with another version."""

    permanent = False


def reindex_run(run: Run) -> int:
    """Queues the run's dumps again and returns their number. Ids, flags and links remain.

    Metric dumps are not indexed again: their points are stored, and the order of indexing decides which of two points
    of one step is used. Nor are dumps of which the retention policy dropped bytes or samples.
    """
    state = Dump.State
    done = run.dumps.filter(state__in=[state.INDEXED, state.SUPERSEDED, state.FAILED, state.UNSAFE])
    done = done.filter(raw_dropped_at=None, samples_dropped_at=None)
    return done.exclude(state=state.INDEXED, format__in=METRIC_FORMATS).requeue(timezone.now())


def store_failure(dump: Dump, error: RolloutError) -> None:
    """Stores the failure in the dump's row, unless this worker has lost its claim."""
    tries = min(dump.tries, Dump.MAX_TRIES - 1) if is_outage(dump, error) else dump.tries
    is_final = error.permanent or tries >= Dump.MAX_TRIES
    failed = Dump.State.UNSAFE if isinstance(error, UnsafeDumpError) else Dump.State.FAILED
    with transaction.atomic():
        claimed = Dump.objects.filter(pk=dump.pk, state=Dump.State.INDEXING, tries=dump.tries)
        claimed.update(
            state=failed if is_final else Dump.State.RECEIVED,
            tries=tries,
            message=clean_message(str(error)),
            due_at=timezone.now() + FIRST_RETRY_DELAY * 2 ** (tries - 1),
        )
        if is_final:
            notify_run_changed(dump.run, split=dump.split, step=dump.step)


def is_outage(dump: Dump, error: RolloutError) -> bool:
    """Whether the storage does not answer, which says nothing about the dump. A file that is missing or damaged is no
    outage."""
    is_refused = isinstance(error, StorageUnavailableError) and not storage.is_file_lost(error.__cause__)
    return is_refused and dump.received_at > timezone.now() - MAX_OUTAGE


def store_failure_patiently(dump: Dump, error: RolloutError) -> None:
    """Tries again while the database does not answer. Otherwise the dump would wait until its claim is over."""
    for pause in DATABASE_PAUSES:
        try:
            return store_failure(dump, error)
        except DatabaseError:
            log.warning("Dump %s: the database does not answer, next try in %s s", dump.pk, pause)
            sleep(pause)
            connection.close_if_unusable_or_obsolete()
    store_failure(dump, error)


def index_claimed_dump(dump: Dump) -> None:
    for _ in range(MAX_READINGS - 1):
        try:
            return read_dump(dump)
        except append_chunks.EarlierChunkError:
            dump.refresh_from_db()
    read_dump(dump)


def read_dump(dump: Dump) -> None:
    if dump.is_final or (dump.segment and artifact_dumps.is_artifact_file_missing(dump)):
        return keep_body(dump)
    with open_dump(dump) as stream:
        dump_format = dump.format or find_table_format(dump.columns)
        form = select_format(remove_compression_ending(dump.source), read_head(dump), dump_format)
        dump.format = form.name
        context = artifact_dumps.build_dump_context(dump)
        items = form.read(stream, context)
        reading = DumpReading(dump, f"{dump.run_id}/{dump.split}/{dump.pk}-{uuid4().hex[:8]}.parquet", stream.tell)
        first = reading.read_first(items)
        if isinstance(first, Record):
            records = reading.select(Record, chain([first], items))
            if dump.step is None:
                with open_dump(dump) as again:
                    others = (item for item in form.read(again, context) if isinstance(item, Record))
                    first_step, has_several_steps = split_steps.find_steps(reading.keep_claim(others))
                if has_several_steps and first_step is not None:
                    return index_steps(reading, records, first_step)
                dump.step = first_step
            return index_samples(reading, records)
        with transaction.atomic():
            if isinstance(first, MetricPoint):
                dump.rows = append_points(dump.run, dump.attempt, reading.select(MetricPoint, chain([first], items)))
            finish_dump(reading)


def keep_body(dump: Dump) -> None:
    """Finishes a dump whose body is all that remains of its bytes. If its step has other dumps, their order decides
    which rows are visible: it may have changed since."""
    with transaction.atomic():
        has_body = dump.segment_id is not None and dump.step is not None
        if has_body and find_step_dumps(dump).exclude(pk=dump.pk).exists():
            assert dump.step is not None
            step = Step.objects.get_locked(dump.run, dump.attempt, dump.split, dump.step_kind, dump.step)
            dump.refresh_from_db(fields=["segment", "segment_offset", "rows", "left_out", "problems"])
            try:
                with transaction.atomic():
                    rows = reconcile_step(step, dump, load_index_rows(dump))
            except StorageUnavailableError as error:
                log.warning("The rows of step %s stay as they are: %s", step.pk, error)
            else:
                recompute_step_stats(step, None if correctness.apply_correctness_rule(step) else rows)
        finish_dump(DumpReading(dump, "", skipped=Counter(dump.left_out), problems=dump.problems))


@contextmanager
def open_dump(dump: Dump) -> Iterator[BinaryIO]:
    """Yields the plain bytes. Raises StorageUnavailableError if they are gone, UnreadableDumpError if damaged."""
    if dump.is_from_artifact:
        with storage.open_blob(dump.run.project_id, dump.sha256) as file:
            yield file
        return
    try:
        raw = cast(io.RawIOBase, storage.open_raw_dump(dump.run.project_id, dump.sha256))
        with io.BufferedReader(raw, 128 << 10) as stream:
            yield storage.open_decompressed(stream)
    except zstandard.ZstdError as error:
        message = (
            f"The stored bytes of dump {dump.sha256[:12]} are damaged. Run fsck --repair, then send the file again."
        )
        raise UnreadableDumpError(message) from error


def read_head(dump: Dump) -> bytes:
    if dump.format:
        return b""
    with open_dump(dump) as stream:
        return stream.read(HEAD_BYTES)


def index_steps(reading: DumpReading, records: Iterator[Record], first: int) -> None:
    """Creates a dump for each step and indexes it. If this worker is killed, the sweep finds the other dumps."""
    kept = reading.leave_out_forgotten(reading.keep_claim(records))
    step_dumps = split_steps.split_by_step(reading.dump, kept, first, reading.renew_claim)
    with transaction.atomic():
        finish_dump(reading)
    for dump in step_dumps:
        with suppress(RolloutError):  # the row of the dump has the error
            index_dump(dump.pk)


def index_samples(reading: DumpReading, records: Iterator[Record]) -> None:
    key = storage.get_body_key(reading.path)
    with storage.write_file(key, is_derived=True) as body:
        reading.write_body(records, body)
        size = body.stat().st_size if reading.writer else None
    with transaction.atomic(), storage.delete_on_failure(key):
        publish_samples(reading, size)


def publish_samples(reading: DumpReading, size: int | None) -> None:
    """Makes the samples visible, all at once. Locks the step's row first, then the dump's, then the run's.

    `size` is that of the body file, None if all records were left out, so there is none.
    """
    dump = reading.dump
    assert dump.step is not None
    step = Step.objects.get_locked(dump.run, dump.attempt, dump.split, dump.step_kind, dump.step)
    append_chunks.check_earlier_chunks(dump, reading.earlier, reading.index_rows.ids())
    old_segment, count = dump.segment, reading.index_rows.count
    renamed = find_renamed_samples(dump, count, reading.index_rows.ids())
    move_user_records(step, renamed)
    rename_results(step, renamed)
    dump.segment = None
    if size is not None:
        dump.segment = Segment.objects.create(
            run=dump.run, split=dump.split, path=reading.path, rows=count, bytes=size, schema=BODY_SCHEMA_VERSION
        )
    dump.segment_offset, dump.rows = 0, count
    rows = reconcile_step(step, dump, reading.index_rows)
    if dump.state == Dump.State.INDEXED:
        append_chunks.requeue_later_chunks(dump, reading.index_rows.ids())
    finish_dump(reading)
    recompute_step_stats(step, None if correctness.apply_correctness_rule(step) else rows)
    mark_superseded_steps(dump.run)
    if old_segment and not old_segment.dumps.exists():
        old_segment.delete()
        # An export may still read the file after the commit.
        transaction.on_commit(partial(storage.touch_file, storage.get_body_key(old_segment.path)))


def finish_dump(reading: DumpReading) -> None:
    """Updates the dump's row and notifies. Raises ClaimLostError if this worker has lost its claim."""
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
