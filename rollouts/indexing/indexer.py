"""A dump is indexed: bytes -> records -> a Parquet body, slim rows, the step's figures, one ring.

Everything a reader can see changes in one transaction at the end, under the step's row lock.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import BinaryIO, cast
from uuid import uuid4

import zstandard
from django.db import DatabaseError, transaction
from django.utils import timezone

from rolloutdeck.watch import remove_compression_ending
from rollouts.errors import RolloutError, StorageUnavailableError, UnreadableDumpError, UnsafeDumpError
from rollouts.formats import HEAD_BYTES, METRIC_FORMATS, DumpContext, Format, find_table_format, select_format
from rollouts.indexing import artifact_dumps, correctness, split_steps
from rollouts.indexing.reading import ClaimLostError, DumpReading, Item, printable
from rollouts.indexing.reconcile import reconcile_step
from rollouts.indexing.step_stats import mark_superseded_steps, recompute_step_stats
from rollouts.live import notify_run_changed
from rollouts.metrics import append_points
from rollouts.models import Dump, Run, Segment, Step
from rollouts.samples import BODY_SCHEMA_VERSION, MetricPoint, Record
from rollouts.storage import (
    delete_on_failure,
    get_body_file_path,
    open_blob,
    open_decompressed,
    open_raw_dump,
    retire_body_file,
)

log = logging.getLogger(__name__)

FIRST_WAIT = timedelta(seconds=5)  # before a failed try is made again; doubles


def index_dump(dump_id: int) -> None:
    """Indexes one dump if nobody else does. Calling it again, at any time and from anywhere, does no harm.

    Raises RolloutError. A permanent one is on the row as `failed` or `unsafe` with its message; after another the
    dump is `received` again, due after a while, until `Dump.MAX_TRIES`.
    """
    dump = Dump.objects.select_related("run__project", "attempt").filter(pk=dump_id).first()
    if dump is None or not dump.claim():
        return
    try:
        index_claimed_dump(dump)
    except ClaimLostError as lost:
        log.warning("Dump %s: %s", dump.pk, lost)
    except RolloutError as error:
        give_back(dump, error)
        raise
    except (DatabaseError, OSError) as error:
        give_back(dump, StorageUnavailableError(f"The disk or the database refused: {error}"))
        raise
    except Exception as error:
        log.exception("Dump %s could not be indexed", dump.pk)
        message = f"The server met an error of its own ({type(error).__name__}: {error}); please report it."
        give_back(dump, StorageUnavailableError(message))
        raise


def reindex_run(run: Run) -> int:
    """Puts the dumps of the run back in the queue and says how many; ids, flags and links stay. Not metrics that were
    read: their points stand, and another order of indexing would change which of two for one step is the last."""
    state = Dump.State
    done = run.dumps.filter(state__in=[state.INDEXED, state.SUPERSEDED, state.FAILED, state.UNSAFE])
    done = done.exclude(state=state.INDEXED, format__in=METRIC_FORMATS)
    return done.update(state=state.RECEIVED, tries=0, message="", due_at=timezone.now())


def give_back(dump: Dump, error: RolloutError) -> None:
    """Writes the failure on the row that this worker claimed."""
    over = error.permanent or dump.tries >= Dump.MAX_TRIES
    failed = Dump.State.UNSAFE if isinstance(error, UnsafeDumpError) else Dump.State.FAILED
    with transaction.atomic():
        mine = Dump.objects.filter(pk=dump.pk, state=Dump.State.INDEXING, tries=dump.tries)
        mine.update(
            state=failed if over else Dump.State.RECEIVED,
            message=printable(str(error)),
            due_at=timezone.now() + FIRST_WAIT * 2 ** (dump.tries - 1),
        )
        if over:
            notify_run_changed(dump.run, split=dump.split, step=dump.step)


def index_claimed_dump(dump: Dump) -> None:
    if dump.segment and artifact_dumps.is_artifact_file_missing(
        dump
    ):  # what was made of its bytes is all that is left of them
        with transaction.atomic():
            finish(DumpReading(dump, "", left_out=Counter(dump.left_out)))
        return
    with raw(dump) as stream:
        form = select_format(
            remove_compression_ending(dump.source),
            head_of(dump),
            dump.format or find_table_format(dump.columns),
        )
        dump.format = form.name
        context = artifact_dumps.build_dump_context(dump)
        items = form.read(stream, context)
        reading = DumpReading(dump, f"{dump.run_id}/{dump.split}/{dump.pk}-{uuid4().hex[:8]}.parquet")
        first = reading.first(items)
        if isinstance(first, MetricPoint):
            keep_points(reading, chain([first], items))
        elif isinstance(first, Record):
            if dump.step is None and is_of_many_steps(dump, form, context):
                keep_steps(reading, chain([first], items))
            else:
                keep_samples(reading, chain([first], items))
        else:
            with transaction.atomic():
                finish(reading)


@contextmanager
def raw(dump: Dump) -> Iterator[BinaryIO]:
    """The plain bytes. Raises StorageUnavailable when they are gone, UnreadableDump when they are damaged."""
    if artifact_dumps.is_artifact_dump(dump):
        with open_blob(dump.run.project_id, dump.sha256) as file:
            yield file
        return
    try:
        with io.BufferedReader(
            cast(io.RawIOBase, open_raw_dump(dump.run.project_id, dump.sha256)), 128 << 10
        ) as stream:
            yield open_decompressed(stream)
    except zstandard.ZstdError as error:
        raise UnreadableDumpError(f"The stored bytes of dump {dump.sha256[:12]} are damaged; send it again.") from error


def head_of(dump: Dump) -> bytes:
    if dump.format:
        return b""
    with raw(dump) as stream:
        return stream.read(HEAD_BYTES)


def keep_points(reading: DumpReading, items: Iterable[Item]) -> None:
    dump = reading.dump
    with transaction.atomic():
        append_points(dump.run, dump.attempt, reading.only(MetricPoint, items))
        finish(reading)


def is_of_many_steps(dump: Dump, form: Format, context: DumpContext) -> bool:
    with raw(dump) as stream:
        return split_steps.has_several_steps(item for item in form.read(stream, context) if isinstance(item, Record))


def keep_steps(reading: DumpReading, items: Iterable[Item]) -> None:
    """Each step becomes a dump of its own, indexed right away; a sweep finds those that a killed worker leaves."""
    made = split_steps.split_by_step(reading.dump, reading.only(Record, items))
    with transaction.atomic():
        finish(reading)
    for dump in made:
        with suppress(RolloutError):  # it is on its row
            index_dump(dump.pk)


def keep_samples(reading: DumpReading, items: Iterable[Item]) -> None:
    body = get_body_file_path(reading.path)
    body.parent.mkdir(parents=True, exist_ok=True)
    with delete_on_failure(body):
        reading.read(reading.only(Record, items))
    with transaction.atomic(), delete_on_failure(body):
        publish(reading, body.stat().st_size)


def publish(reading: DumpReading, size: int) -> None:
    """What readers see changes here, all at once. The step's lock comes first, then this dump's row, then the run's."""
    dump = reading.dump
    assert dump.step is not None
    step = Step.objects.get_locked(dump.run, dump.attempt, dump.split, dump.step_kind, dump.step)
    before = dump.segment
    dump.segment = Segment.objects.create(
        run=dump.run,
        split=dump.split,
        path=reading.path,
        rows=reading.slim.count,
        bytes=size,
        schema=BODY_SCHEMA_VERSION,
    )
    dump.segment_offset, dump.rows = 0, reading.slim.count
    rows = reconcile_step(step, dump, reading.slim)
    finish(reading)
    recompute_step_stats(step, None if correctness.apply_correctness_rule(step) else rows)
    mark_superseded_steps(dump.run)
    if before:
        drop_unused(before)


def finish(reading: DumpReading) -> None:
    """The dump's row, if this worker still holds it, and the ring. Raises ClaimLost."""
    dump = reading.dump
    state = dump.state if dump.state == Dump.State.SUPERSEDED else Dump.State.INDEXED
    mine = Dump.objects.filter(pk=dump.pk, state=Dump.State.INDEXING, tries=dump.tries)
    won = mine.update(
        state=state,
        message="",
        step=dump.step,
        format=dump.format,
        rows=dump.rows,
        left_out=dict(reading.left_out),
        problems=reading.problems,
        segment=dump.segment,
        segment_offset=dump.segment_offset,
        indexed_at=timezone.now(),
    )
    if not won:
        raise ClaimLostError("Another worker has taken it over.")
    notify_run_changed(dump.run, split=dump.split, step=dump.step)


def drop_unused(segment: Segment) -> None:
    """Gives up a body file that no dump is in any more, once the transaction stands; an export may still read it."""
    if not segment.dumps.exists():
        path = get_body_file_path(segment.path)
        segment.delete()
        transaction.on_commit(partial(retire_body_file, path))
