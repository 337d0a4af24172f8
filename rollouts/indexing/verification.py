"""Verifies that a body has every row of its dump, before the raw bytes are dropped."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from rolloutdeck.watch import remove_compression_ending
from rollouts import samples
from rollouts.errors import RolloutError, StorageUnavailableError
from rollouts.formats import TOKEN_ONLY_FORMATS, select_format
from rollouts.indexing.artifact_dumps import build_dump_context
from rollouts.indexing.indexer import open_dump
from rollouts.indexing.reading import DumpReading, iter_batches
from rollouts.models import Dump
from rollouts.samples import Record
from rollouts.storage import is_file_lost


def find_body_difference(dump: Dump) -> str:
    """Reads the raw bytes again and compares each value of each row. Returns "" if the body reproduces them, else why
    not. A body that an older version wrote may differ: then the raw bytes have more. Raises StorageUnavailableError if
    the files cannot be read now, which says nothing about them."""
    if dump.format in TOKEN_ONLY_FORMATS:
        return "it has tokens only, and may be read again with a tokenizer"
    difference = compare_with_raw(dump, continues_counts=True)
    if difference and dump.offset is not None:
        # Older versions counted the equal samples of each chunk of a file from 0.
        return difference if compare_with_raw(dump, continues_counts=False) else ""
    return difference


def compare_with_raw(dump: Dump, *, continues_counts: bool) -> str:
    try:
        with open_dump(dump) as stream:
            form = select_format(remove_compression_ending(dump.source), b"", dump.format)
            reading = DumpReading(dump, "", stream.tell, continues_counts=continues_counts)
            records = reading.select(Record, form.read(stream, build_dump_context(dump)))
            owner = dump.run.image_owner
            kept = reading.leave_out_forgotten(reading.prepare_ids(records))
            return compare_rows(dump, reading, (samples.extract_images(record, owner) for record in kept))
    except MemoryError:
        return "reading it again needs more memory than a worker may use"
    except (RolloutError, OSError, pa.ArrowException) as error:
        if is_temporary(dump, error):
            raise StorageUnavailableError(f"Dump {dump.pk} cannot be compared with its body now: {error}") from error
        return f"it cannot be read: {error}"


def is_temporary(dump: Dump, error: Exception) -> bool:
    """Whether the disk or the bucket does not answer, or compaction has moved the body since the dump was loaded."""
    cause = error.__cause__ if isinstance(error, StorageUnavailableError) else error
    if isinstance(error, FileNotFoundError):
        return not Dump.objects.filter(pk=dump.pk, segment=dump.segment_id).exists()
    return isinstance(cause, OSError) and not is_file_lost(cause)


def compare_rows(dump: Dump, reading: DumpReading, records: Iterator[Record]) -> str:
    stored = StoredRows(samples.scan_dump_rows(dump, None))
    count = 0
    for batch in iter_batches(records, reading.get_position):
        expected = reading.build_table(batch)[0]
        if not have_equal_values(expected, stored.take(expected.num_rows)):
            return f"rows {count + 1} to {count + expected.num_rows} differ from the body; index the run again first"
        count += expected.num_rows
    if count != dump.rows:
        return f"it has {count} rows and the body {dump.rows}; index the run again first"
    return ""


class StoredRows:
    """The rows of a body, taken in pieces of any size."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self.tables, self.rest = tables, None

    def take(self, count: int) -> pa.Table:
        """Returns the next rows, fewer at the end."""
        parts: list[pa.Table] = [] if self.rest is None else [self.rest]
        while sum(part.num_rows for part in parts) < count and (table := next(self.tables, None)) is not None:
            parts.append(table)
        joined = pa.concat_tables(parts) if parts else pa.table({})
        self.rest = joined.slice(count)
        return joined.slice(0, count)


def have_equal_values(expected: pa.Table, stored: pa.Table) -> bool:
    """A column that only one of them has must be empty: compaction adds the columns of other dumps."""
    if expected.num_rows != stored.num_rows:
        return False
    for name in {*expected.schema.names, *stored.schema.names}:
        columns = [table[name] for table in (expected, stored) if name in table.schema.names]
        if len(columns) == 1:
            if columns[0].null_count < expected.num_rows:
                return False
        elif not columns[0].equals(columns[1]) and repr(columns[0].to_pylist()) != repr(columns[1].to_pylist()):
            return False  # `equals` says that NaN differs from NaN
    return True
