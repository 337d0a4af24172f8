"""Indexes a dump: bytes -> records -> a Parquet body, index rows, step statistics and one change notification.

Everything a reader can see changes in one transaction at the end, see `publishing.py`.
"""

import io
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from time import monotonic, perf_counter, sleep
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
from rollouts.indexing.publishing import finish_dump, publish_samples
from rollouts.indexing.reading import ClaimLostError, DumpReading, clean_message
from rollouts.indexing.reconcile import find_step_dumps, load_index_rows, reconcile_step
from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.live import notify_run_changed
from rollouts.metrics import append_points
from rollouts.models import Dump, Run, Step, get_step_position
from rollouts.samples import MetricPoint, Record
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
# Dumps of one step that one worker indexes together, so that the step is merged once for all of them.
BATCH_DUMPS = 64
BATCH_BYTES = 8 << 20
BATCH_SECONDS = 5.0  # of reading them, far below `Dump.LEASE`
SMALL_DUMP_BYTES = 1 << 20


def index_dump(dump_id: int) -> None:
    """Indexes a dump, unless another worker does. Safe to call again at any time.

    Raises RolloutError. After a permanent error the dump is `failed` or `unsafe` and has the message. After another
    error it is `received` again and due later, until `Dump.MAX_TRIES`, or for a day while the storage does not answer.
    """
    dump = Dump.objects.select_related("run__project", "attempt").filter(pk=dump_id).first()
    if dump is None or not dump.claim():
        return
    index_claimed_dump(dump)


def index_claimed_dump(dump: Dump, batch: list[DumpReading] | None = None) -> None:
    """Indexes the dump, and measures the time and the outcome. `batch`: see `index_samples`."""
    started, is_indexed = perf_counter(), False
    with set_log_ids(run=dump.run.uid, dump=dump.pk):
        try:
            is_indexed = try_to_index(dump, batch)
        finally:
            file_format = dump.format if dump.format in FORMAT_NAMES else "unknown"
            INDEX_SECONDS.labels(file_format).observe(perf_counter() - started)
            DUMPS.labels(file_format, "indexed" if is_indexed else "failed").inc()


def try_to_index(dump: Dump, batch: list[DumpReading] | None) -> bool:
    """Returns whether the dump is indexed. If not, its row has the reason."""
    try:
        index_with_rereads(dump, batch)
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


def index_with_rereads(dump: Dump, batch: list[DumpReading] | None = None) -> None:
    for _ in range(MAX_READINGS - 1):
        try:
            return index_content(dump, batch)
        except append_chunks.EarlierChunkError:
            dump.refresh_from_db()
    index_content(dump, batch)


def index_content(dump: Dump, batch: list[DumpReading] | None) -> None:
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
            return index_samples(reading, records, batch)
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
                    rows = reconcile_step(step, {dump: load_index_rows(dump)})
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


def index_samples(reading: DumpReading, records: Iterator[Record], batch: list[DumpReading] | None) -> None:
    """Publishes the samples of a dump, or adds them to `batch`, which the caller publishes.

    A step is merged from all its dumps. So small dumps of it that wait are indexed with this one: one by one, a step
    of k dumps would be merged k times.
    """
    with storage.write_file(storage.get_body_key(reading.path), is_derived=True) as body:
        reading.write_body(records, body)
        reading.body_bytes = body.stat().st_size if reading.writer else None
    if batch is not None:
        return batch.append(reading)
    readings = [reading]
    try:
        for dump in claim_waiting_dumps(reading.dump):
            with suppress(Exception):  # the row of the dump has the error
                index_claimed_dump(dump, readings)
        publish_samples(readings)
    except Exception:
        release_dumps([other.dump for other in readings[1:]])
        raise


def claim_waiting_dumps(dump: Dump) -> Iterator[Dump]:
    """Claims small dumps of the same step that wait for their first try, in order of arrival, and yields them.

    Chunks are left out, because the ids of one depend on those before it.
    """
    if dump.bytes > SMALL_DUMP_BYTES or dump.offset is not None or dump.tries > 1:
        return
    waiting = Dump.objects.filter(**get_step_position(dump), state=Dump.State.RECEIVED, tries=0, offset=None)
    small = waiting.filter(bytes__lte=SMALL_DUMP_BYTES, raw_dropped_at=None, samples_dropped_at=None)
    started, size = monotonic(), dump.bytes
    for other in small.order_by("received_at", "pk")[: BATCH_DUMPS - 1]:
        size += other.bytes
        if size > BATCH_BYTES or monotonic() - started > BATCH_SECONDS:
            return
        if other.claim():
            other.run, other.attempt = dump.run, dump.attempt  # the same rows, loaded already
            yield other


def release_dumps(dumps: Sequence[Dump]) -> None:
    """Lets claimed dumps wait again. Their next try is alone, so a dump that cannot be stored stops no others."""
    with suppress(DatabaseError, InterfaceError):  # then their claims end
        for dump in dumps:
            claimed = Dump.objects.filter(pk=dump.pk, state=Dump.State.INDEXING, tries=dump.tries)
            claimed.update(state=Dump.State.RECEIVED, due_at=timezone.now())
