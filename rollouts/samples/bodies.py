"""Loads full samples from the Parquet body files and merges the records of all dumps that contain a sample."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import accumulate, compress
from typing import Final, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from django.db import connections
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import NotFoundError, StorageUnavailableError
from rollouts.models import Dump, DuplicateSource, Sample, Segment
from rollouts.samples.parquet import build_records, list_reward_columns
from rollouts.samples.record import Record
from rollouts.storage import fetch_body_file

MISSING_BODY_MESSAGE: Final = N_("The text of this sample is not available. Re-index the run to restore it.")
# Compaction may move a body into another segment after its path was read and before it is opened.
MAX_OPEN_TRIES = 3
Rows = TypeVar("Rows")
Item = TypeVar("Item")
Read = TypeVar("Read")
RECORD_FIELDS: Final = tuple(record_field.name for record_field in fields(Record))


@dataclass(slots=True)
class SampleBody(Record):
    """A sample merged from all its dumps. `source_dumps` lists them; the dump that owns the index row is first."""

    source_dumps: list[Dump] = field(default_factory=list)


def load_bodies(samples: Sequence[Sample], columns: list[str] | None = None) -> dict[str, SampleBody]:
    """Returns bodies by sample id, with these columns (default: all); `prompt` and `response` are always needed. Raises
    StorageUnavailableError if a file cannot be read."""
    samples_by_dump: dict[int, dict[int, str]] = defaultdict(dict)
    owners = {sample.id: sample.dump_id for sample in samples}
    for sample in samples:
        samples_by_dump[sample.dump_id][sample.ordinal] = sample.id
    for duplicate in DuplicateSource.objects.filter(sample__in=list(owners)):
        samples_by_dump[duplicate.dump_id][duplicate.ordinal] = duplicate.sample
    dumps = Dump.objects.filter(pk__in=samples_by_dump).select_related("segment").order_by("received_at", "pk")
    sources: dict[str, list[tuple[Dump, Record]]] = defaultdict(list)
    for dump in dumps:
        sample_ids = samples_by_dump[dump.pk]
        for ordinal, record in load_dump_records(dump, sorted(sample_ids), columns).items():
            sources[sample_ids[ordinal]].append((dump, record))
    for sample_id, dump_records in sources.items():
        dump_records.sort(key=lambda source: source[0].pk != owners[sample_id])
    return {sample_id: merge_records(dump_records) for sample_id, dump_records in sources.items()}


def load_body(sample: Sample) -> SampleBody:
    """Raises NotFoundError if the body is missing, StorageUnavailableError if it cannot be read."""
    if body := load_bodies([sample]).get(sample.pk):
        return body
    raise NotFoundError(_(MISSING_BODY_MESSAGE), "sample")


def load_texts(samples: Sequence[Sample]) -> dict[str, tuple[str, str]]:
    """Returns (prompt, response) by sample id, from the dumps that own the rows. Only these two columns are read.
    Raises StorageUnavailableError."""
    samples_by_dump: dict[int, dict[int, str]] = defaultdict(dict)
    for sample in samples:
        samples_by_dump[sample.dump_id][sample.ordinal] = sample.id
    texts: dict[str, tuple[str, str]] = {}
    for dump in Dump.objects.filter(pk__in=samples_by_dump).select_related("segment"):
        ids = samples_by_dump[dump.pk]
        for ordinal, record in load_dump_records(dump, sorted(ids), ["prompt", "response"]).items():
            texts[ids[ordinal]] = (record.prompt or "", record.response)
    return texts


def merge_records(dump_records: Sequence[tuple[Dump, Record]]) -> SampleBody:
    """Returns the first record, with its missing values filled from the later records."""
    first = dump_records[0][1]
    body = SampleBody(**{name: getattr(first, name) for name in RECORD_FIELDS})
    body.source_dumps = [dump for dump, _ in dump_records]
    for _dump, record in dump_records[1:]:
        if body.textless and not record.textless:
            body.response, body.textless = record.response, False
        for name in RECORD_FIELDS:
            if getattr(body, name) in (None, ""):
                setattr(body, name, getattr(record, name))
        body.rewards = {**record.rewards, **{key: value for key, value in body.rewards.items() if value is not None}}
        body.extras = {**record.extras, **body.extras}
    return body


def load_dump_records(dump: Dump, ordinals: Sequence[int], columns: list[str] | None = None) -> dict[int, Record]:
    """Returns the existing records by ordinal, with these columns (default: all).

    Raises StorageUnavailableError if the file cannot be read.
    """
    return {
        ordinal: record
        for found, table in load_dump_tables(dump, ordinals, columns)
        for ordinal, record in zip(found, build_records(table), strict=True)
    }


def load_dump_tables(
    dump: Dump, ordinals: Sequence[int], columns: list[str] | None = None
) -> list[tuple[list[int], pa.Table]]:
    """Returns the existing rows with these ordinals, as tables with the ordinals of their rows.

    Raises StorageUnavailableError if the file cannot be read.
    """

    def read() -> list[tuple[list[int], pa.Table]]:
        with open_body_file(dump) as file:
            return list(read_rows(file, dump.segment_offset, ordinals, columns))

    return read_body_file(dump, read)


def read_body_file(dump: Dump, read: Callable[[], Rows]) -> Rows:
    """Returns what `read` reads from the dump's file. Calls it again if the dump has moved to another segment.

    Raises StorageUnavailableError if the file cannot be read.
    """
    for _try in range(MAX_OPEN_TRIES):
        try:
            return read()
        except FileNotFoundError:
            dump.refresh_from_db(fields=["segment", "segment_offset"])
        except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
            message = _("Cannot read the sample texts of dump {dump}: {error}.")
            raise StorageUnavailableError(message.format(dump=dump.pk, error=error)) from error
    message = _("The sample texts of dump {dump} are missing on disk. Re-index the run to restore them.")
    raise StorageUnavailableError(message.format(dump=dump.pk))


class BodyReader:
    """Reads rows of one dump after another, without some columns. Keeps the last file open: the next dump is often in
    the same file, and opening one with hundreds of dumps takes longer than reading one dump."""

    def __init__(self, columns: Collection[str] | None = None, without: Collection[str] = ()) -> None:
        self.wanted, self.without = columns, without
        self.segment: int | None = None
        self.file: pq.ParquetFile | None = None
        self.columns: list[str] = []
        self.rows = pl.LazyFrame()

    def read(self, dump: Dump, ordinals: Sequence[int]) -> pl.DataFrame:
        """Returns the existing rows with these ordinals, which are in ascending order. Raises
        StorageUnavailableError."""
        return read_body_file(dump, lambda: self.read_rows(dump, ordinals))

    def read_rows(self, dump: Dump, ordinals: Sequence[int]) -> pl.DataFrame:
        file = self.open(dump)
        if ordinals[-1] - ordinals[0] + 1 == len(ordinals):  # three quarters of the time that Arrow takes
            try:
                return self.rows.slice(dump.segment_offset + ordinals[0], len(ordinals)).select(self.columns).collect()
            except FileNotFoundError:  # polars opens the file each time, and it may be gone meanwhile
                self.close()
                raise
        tables = [table for _ordinals, table in read_rows(file, dump.segment_offset, ordinals, self.columns)]
        return to_frame(pa.concat_tables(tables) if tables else file.schema_arrow.empty_table().select(self.columns))

    def open(self, dump: Dump) -> pq.ParquetFile:
        if self.file is None or dump.segment_id != self.segment:
            self.close()
            self.file = open_body_file(dump, memory_map=False)
            assert dump.segment is not None
            self.rows, self.segment = pl.scan_parquet(fetch_body_file(dump.segment.path)), dump.segment_id
            names = self.file.schema_arrow.names
            self.columns = [name for name in self.wanted or names if name in names and name not in self.without]
        return self.file

    def list_reward_columns(self) -> list[str]:
        """Returns the columns of the last file that have a reward part."""
        return list_reward_columns(self.file.schema_arrow) if self.file else []

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        self.file = None


def read_bodies(
    places: Sequence[tuple[str, int, int]], dumps: Mapping[int, Dump], bodies: BodyReader
) -> Iterator[tuple[list[int], pl.DataFrame]]:
    """Yields for each dump the existing rows, with their positions in `places`, which are (sample, dump, ordinal).
    Dumps that were dropped a moment ago have none, and rows of other samples are left out: those moved after the places
    were read. `bodies` also reads the ids. Raises StorageUnavailableError."""
    by_dump: dict[int, dict[int, int]] = defaultdict(dict)  # the positions by ordinal
    for position, (_sample, dump, ordinal) in enumerate(places):
        by_dump[dump][ordinal] = position
    for dump, by_ordinal in by_dump.items():
        ordinals = sorted(by_ordinal)
        if dump not in dumps or not (body := bodies.read(dumps[dump], ordinals)).height:
            continue
        positions = [by_ordinal[ordinal] for ordinal in ordinals[: body.height]]
        is_same = body["id"] == pl.Series([places[position][0] for position in positions])
        if not is_same.all():
            positions, body = list(compress(positions, is_same)), body.filter(is_same)
        if positions:
            yield positions, body


def read_ahead(items: Iterable[Item], read: Callable[[Item], Read]) -> Iterator[tuple[Item, Read]]:
    """Yields each item with what `read` returns for it. While the caller works on one item, a thread reads the next:
    polars reads without the interpreter's lock."""

    def read_in_thread(item: Item) -> Read:
        try:
            return read(item)
        finally:
            connections.close_all()  # of this thread, if a dump had moved

    with ThreadPoolExecutor(1, "read-ahead") as thread:
        last: tuple[Item, Future[Read]] | None = None
        for item in items:
            reading = thread.submit(read_in_thread, item)
            if last:
                yield last[0], last[1].result()
            last = item, reading
        if last:
            yield last[0], last[1].result()


def to_frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def open_body_file(dump: Dump, *, memory_map: bool = True) -> pq.ParquetFile:
    """Opens the file of a dump's body. Raises FileNotFoundError, also if the dump has moved to another segment."""
    try:
        segment = dump.segment
    except Segment.DoesNotExist:
        segment = None
    if segment is None:
        raise FileNotFoundError
    return pq.ParquetFile(fetch_body_file(segment.path), memory_map=memory_map)


def read_rows(
    file: pq.ParquetFile, offset: int, ordinals: Sequence[int], columns: list[str] | None = None
) -> Iterator[tuple[list[int], pa.Table]]:
    """Yields ordinals with a table of their rows. Reads each row group at most once."""
    ends = list(accumulate(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)))
    ordinals_by_group: dict[int, list[int]] = defaultdict(list)
    for ordinal in ordinals:
        if offset + ordinal < (ends[-1] if ends else 0):
            ordinals_by_group[bisect_right(ends, offset + ordinal)].append(ordinal)
    for group, group_ordinals in ordinals_by_group.items():
        table = file.read_row_group(group, columns=columns)
        start = ends[group] - table.num_rows
        if len(group_ordinals) < table.num_rows or group_ordinals != sorted(group_ordinals):
            table = table.take([offset + ordinal - start for ordinal in group_ordinals])
        yield group_ordinals, table


def scan_dump_rows(dump: Dump, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """Yields the rows of a dump in order, one row group at a time. `columns` is None to read all columns."""
    with open_body_file(dump) as file:
        yield from scan_dump_rows_in_file(dump, file, columns)


def scan_dump_rows_in_file(dump: Dump, file: pq.ParquetFile, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """Same as `scan_dump_rows` with an open file. Opening a segment with hundreds of dumps takes longer than reading
    one dump, so callers that read many dumps of a segment open it once."""
    position, end = 0, dump.segment_offset + dump.rows
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        first, last = max(position, dump.segment_offset), min(position + rows, end)
        if first < last:
            table = file.read_row_group(group, columns=columns)
            yield table.slice(first - position, last - first)
        position += rows


def read_dump_columns(dump: Dump, file: pq.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """The rows of a dump as one table, for columns of numbers: row groups that are read together take half the time."""
    ends = list(accumulate(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)))
    first = bisect_right(ends, dump.segment_offset)
    last = bisect_left(ends, dump.segment_offset + dump.rows)
    table = file.read_row_groups(range(first, min(last + 1, len(ends))), columns=list(columns))
    return table.slice(dump.segment_offset - (ends[first - 1] if first else 0), dump.rows)
