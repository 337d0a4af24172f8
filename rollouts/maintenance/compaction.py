"""Joins small body files into large ones: a scan of ten thousand small Parquet files takes ten times longer."""

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from django.db import transaction
from django.db.models import Count, F, Sum

from rollouts.maintenance.sweep import ORPHAN_LIFETIME_SECONDS
from rollouts.models import Dump, Segment
from rollouts.samples import (
    BODY_SCHEMA_VERSION,
    FIXED_FIELDS,
    REWARD_METADATA,
    BodyWriter,
    open_body_file,
    scan_dump_rows_in_file,
)
from rollouts.storage import (
    delete_file,
    delete_on_failure,
    fetch_body_file,
    get_body_key,
    is_file_lost,
    list_files,
    skip_during_backup,
    touch_file,
    write_file,
)

log = logging.getLogger(__name__)

# Larger files are not joined: each adds 1 ms to a scan. A copy takes CPU and, for an hour, the same space again.
MAX_SMALL_BYTES = 1 << 20
MAX_SEGMENT_BYTES = 64 << 20
MAX_USED_SHARE = 0.9  # of the rows of a file, below which the others are removed
MIN_SMALL_FILES = 32  # fewer are not worth a copy
JOINED_ROWS = 1024  # that are written together, or so many bytes
JOINED_BYTES = 16 << 20


class MovedRows(NamedTuple):
    """A dump, read before its rows were copied, and the offset of its rows in the new file."""

    dump: Dump
    offset: int


class RowsChangedError(Exception):
    """A dump was indexed again, or compacted by another worker, while its rows were copied."""


class UnreadableFilesError(Exception):
    """Body files are missing or damaged. `segments` are their ids."""

    def __init__(self, segments: Collection[int | None], reason: object) -> None:
        super().__init__(str(reason))
        self.segments = segments


def find_splits_to_compact() -> list[tuple[int, str]]:
    """Returns each (run id, split) with many small Parquet files."""
    small = Segment.objects.filter(bytes__lt=MAX_SMALL_BYTES).values("run", "split")
    due = small.annotate(files=Count("pk")).filter(files__gte=MIN_SMALL_FILES)
    return list(due.values_list("run", "split"))


def compact_body_files(run_id: int, split: str) -> int:
    """Joins a run's small body files into segments of up to 64 MB, oldest dumps first.

    Returns the number of joined files.
    Safe to kill and to run twice: the new file is complete before one transaction points the rows to it. The old files
    are removed one hour later, because on SQLite a response that is being written still reads the old rows.
    """
    return sum(join_segments(run_id, split, batch) for batch in iter_segment_batches(run_id, split) if len(batch) > 1)


def iter_segment_batches(run_id: int, split: str) -> Iterator[list[Segment]]:
    """Yields small segments in order, in batches of one full segment. The sweep removes segments without dumps."""
    batch: list[Segment] = []
    size = 0
    small = Segment.objects.filter(run=run_id, split=split, bytes__lt=MAX_SMALL_BYTES, dumps__isnull=False)
    for segment in small.distinct().order_by("pk"):
        if batch and size + segment.bytes > MAX_SEGMENT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(segment)
        size += segment.bytes
    yield batch


def join_segments(run_id: int, split: str, segments: Sequence[Segment]) -> int:
    """Copies the rows that dumps still point to into one new file. Rows that a re-index replaced are not copied.
    Segments whose files are missing or damaged stay as they are.

    Returns the number of joined segments, 0 if the dumps changed meanwhile.
    """
    readable, min_files = list(segments), min(len(segments), 2)
    while readable and len(readable) >= min_files:
        try:
            return copy_segments(run_id, split, readable)
        except UnreadableFilesError as error:
            log.warning("Body files of run %s (%s) are not joined: %s", run_id, split, error)
            readable = [segment for segment in readable if segment.pk not in error.segments]
    return 0


def copy_segments(run_id: int, split: str, segments: Sequence[Segment]) -> int:
    """Joins segments as `join_segments` does. Raises UnreadableFilesError."""
    path = f"{run_id}/{split}/segment-{uuid4().hex}.parquet"
    key = get_body_key(path)
    dumps = Dump.objects.filter(segment__in=segments).select_related("segment").order_by("segment", "segment_offset")
    try:
        with write_file(key) as temporary_path:
            moved = copy_rows(list(dumps), temporary_path)
            size = temporary_path.stat().st_size
        target = Segment(run_id=run_id, split=split, path=path, bytes=size, schema=BODY_SCHEMA_VERSION)
        with transaction.atomic(), delete_on_failure(key):
            replace_segments(target, moved, segments)
    except (RowsChangedError, FileNotFoundError):  # the next compaction reads the new rows
        return 0
    return len(segments)


def copy_rows(dumps: Sequence[Dump], path: Path) -> list[MovedRows]:
    """Writes the rows of the dumps, sorted by segment, to a new body file. Raises UnreadableFilesError."""
    schema = merge_schemas(read_schemas(dumps))
    writer = BodyWriter(path, schema)
    joined = JoinedRows(writer)
    moved: list[MovedRows] = []
    try:
        for segment, group in groupby(dumps, lambda dump: dump.segment_id):
            try:
                copy_segment_rows(list(group), joined, schema, moved)
            except (OSError, pa.ArrowException) as error:
                if not is_file_lost(error):
                    raise
                raise UnreadableFilesError([segment], error) from error
        joined.flush()
    finally:
        writer.close()
    return moved


class JoinedRows:
    """Writes the rows of several dumps together. A row group for each of many small dumps would make the footer of the
    file longer than its data."""

    def __init__(self, writer: BodyWriter) -> None:
        self.writer = writer
        self.tables: list[pa.Table] = []
        self.rows = self.bytes = 0  # of `tables`

    @property
    def offset(self) -> int:
        """The position of the next row in the file."""
        return self.writer.rows + self.rows

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.rows, self.bytes = self.rows + table.num_rows, self.bytes + table.nbytes
        if self.rows >= JOINED_ROWS or self.bytes >= JOINED_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.tables:
            self.writer.write(pa.concat_tables(self.tables))
        self.tables, self.rows, self.bytes = [], 0, 0


def copy_segment_rows(dumps: Sequence[Dump], joined: JoinedRows, schema: pa.Schema, moved: list[MovedRows]) -> None:
    """Writes the rows of dumps of one file, and adds them to `moved`."""
    with open_body_file(dumps[0]) as file:
        for dump in dumps:
            moved.append(MovedRows(dump, joined.offset))
            for table in scan_dump_rows_in_file(dump, file, None):
                joined.add(fit_to_schema(table, schema))


def read_schemas(dumps: Sequence[Dump]) -> list[pa.Schema]:
    """Returns the schema of each file of the dumps. Raises UnreadableFilesError, which names all unreadable files."""
    schemas: list[pa.Schema] = []
    unreadable: dict[int, Exception] = {}
    for segment in dict.fromkeys(dump.segment for dump in dumps if dump.segment):
        try:
            schemas.append(pq.read_schema(fetch_body_file(segment.path)))
        except (OSError, pa.ArrowException) as error:
            if not is_file_lost(error):
                raise
            unreadable[segment.pk] = error
    if unreadable:
        raise UnreadableFilesError(unreadable.keys(), next(iter(unreadable.values())))
    return schemas


def merge_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the fixed columns and all other columns of the files. A column is a reward if any file marks it so."""
    fields: dict[str, pa.Field] = {}
    for field in chain.from_iterable(schemas):
        if field.name not in fields or field.metadata == REWARD_METADATA:
            fields[field.name] = field
    fixed_names = [field.name for field in FIXED_FIELDS]
    rest = [field for name, field in fields.items() if name not in fixed_names]
    return pa.schema([*FIXED_FIELDS, *rest], metadata={"rolloutdeck": str(BODY_SCHEMA_VERSION)})


def fit_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the table with the columns of `schema`. Missing columns are null."""
    names, count = table.schema.names, table.num_rows
    columns = [table[field.name] if field.name in names else pa.nulls(count, field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def replace_segments(target: Segment, moved: Sequence[MovedRows], old: Sequence[Segment]) -> None:
    """Saves the row of the new file, points the dumps to it and deletes the old segments.

    Raises RowsChangedError if a dump no longer points to the rows that were copied.
    """
    target.rows = sum(rows.dump.rows for rows in moved)
    target.save()
    for dump, offset in moved:
        unchanged = Dump.objects.filter(pk=dump.pk, rows=dump.rows, segment_offset=dump.segment_offset)
        if not unchanged.filter(segment=dump.segment).update(segment=target, segment_offset=offset):
            raise RowsChangedError
    for segment in old:
        if segment.dumps.exists():
            raise RowsChangedError
        key = get_body_key(segment.path)
        segment.delete()
        transaction.on_commit(partial(touch_file, key))


def find_body_files_with_unused_rows(project_id: int) -> list[Segment]:
    """Returns the files of a project of which no dump uses a tenth of the rows or more: the samples were dropped, or
    indexed again into another file."""
    used = Segment.objects.filter(run__project=project_id).annotate(used=Sum("dumps__rows"))
    return list(used.filter(used__gt=0, used__lte=F("rows") * MAX_USED_SHARE).order_by("pk"))


def remove_unused_rows(segment: Segment) -> bool:
    """Copies the used rows of a file into a new one. Returns False if its dumps changed meanwhile, or it is missing or
    damaged."""
    return join_segments(segment.run_id, segment.split, [segment]) > 0


@skip_during_backup
def delete_orphan_bodies() -> int:
    """Removes segment rows without a dump and old body files without a segment row. Returns the number of files."""
    Segment.objects.filter(dumps__isnull=True).delete()
    return delete_orphan_body_files()


def delete_orphan_body_files() -> int:
    """Removes Parquet files that no segment names (a worker died before it wrote the row). Returns their number."""
    max_modified_at = time.time() - ORPHAN_LIFETIME_SECONDS
    old_keys = {file.key for file in list_files("bodies/") if file.modified_at < max_modified_at}
    paths = Segment.objects.values_list("path", flat=True) if old_keys else ()
    orphans = old_keys - {get_body_key(path) for path in paths}
    for key in orphans:
        delete_file(key)
    return len(orphans)
