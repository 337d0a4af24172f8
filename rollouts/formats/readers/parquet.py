"""Rows of a Parquet file that somebody else wrote: bounded, and whatever type a column has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rolloutdeck.protocol import MAX_DUMP_BYTES, MAX_LINE_BYTES
from rollouts.errors import UnreadableDumpError

MAX_BATCH_ROWS = 256  # rows in memory,
LARGE = 64 << 20  # or one, where they unfold to more bytes than that
MOST_ROWS = 1 << 22
TEXTS = ("NONE", "STRING", "JSON", "ENUM")  # what bytes may be meant as; others are numbers

ColumnValues = dict[str, Any]


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Opens the file. A text that the file stores once is in memory once. Raises UnreadableDumpError, also if a read in
    the block fails."""
    try:
        with pq.ParquetFile(path) as file:
            texts = [name for name, kind, meant in leaves(file) if kind == "BYTE_ARRAY" and meant in TEXTS]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        said = str(error).partition("\n")[0].rstrip(".")[:200] or type(error).__name__
        raise UnreadableDumpError(f"It is no Parquet file that can be read: {said}.") from error


def leaves(file: pq.ParquetFile) -> Iterator[tuple[str, str, str]]:
    """(name, how it lies there, what it means) of what columns are made of."""
    for at in range(len(file.schema)):
        leaf = file.schema.column(at)
        yield leaf.path, leaf.physical_type, leaf.logical_type.type


def read_parquet_rows(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[ColumnValues]:
    """Raises UnreadableDumpError where a few bytes unfold to more than a dump, or one of its rows, may have."""
    if (count := file.metadata.num_rows) > MOST_ROWS:
        raise UnreadableDumpError(f"The Parquet file says that it has {count:,} rows; at most {MOST_ROWS:,} are read.")
    yield from read_batch_rows("Parquet", file.iter_batches(batch_size=MAX_BATCH_ROWS, columns=columns))


def read_batch_rows(kind: str, batches: Iterable[pa.RecordBatch]) -> Iterator[ColumnValues]:
    """The rows of batches of at most `AT_ONCE`. Raises UnreadableDumpError, as `rows`."""
    count, all_held = 0, 0
    for batch in batches:
        held = count_batch_bytes(batch)
        count, all_held = count + len(batch), all_held + held
        if count > MOST_ROWS:
            raise UnreadableDumpError(f"The {kind} file has more than {MOST_ROWS:,} rows.")
        if all_held > MAX_DUMP_BYTES:
            raise UnreadableDumpError(f"The {kind} file unfolds to more than {MAX_DUMP_BYTES >> 30} GiB.")
        if held <= LARGE:
            yield from rows_of(batch)
            continue
        for at in range(len(batch)):
            row = batch.slice(at, 1)
            if count_batch_bytes(row) > MAX_LINE_BYTES:
                raise UnreadableDumpError(f"A row of the {kind} file unfolds to more than {MAX_LINE_BYTES >> 20} MiB.")
            yield from rows_of(row)


def rows_of(batch: pa.RecordBatch) -> Iterator[ColumnValues]:
    columns = {field.name: values(column) for field, column in zip(batch.schema, batch.columns, strict=True)}
    yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def count_batch_bytes(batch: pa.RecordBatch) -> int:
    return sum(map(size, batch.columns))


def size(column: pa.Array) -> int:
    """Bytes, where a value that is kept once and named often counts each time, and one that takes none as one."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return unfolded_size(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return len(column) + size(column.flatten())
    if pa.types.is_map(kind):
        start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return len(column) + sum(size(part.slice(start, end - start)) for part in (column.keys, column.items))
    if pa.types.is_struct(kind):
        return len(column) + sum(map(size, column.flatten()))
    return max(int(column.nbytes), len(column))


def unfolded_size(column: pa.DictionaryArray) -> int:
    if not pa.types.is_string(column.dictionary.type) and not pa.types.is_binary(column.dictionary.type):
        return int(column.dictionary_decode().nbytes)
    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
    return len(column) + (pc.sum(lengths.take(column.indices)).as_py() or 0)


def values(column: pa.Array) -> list[Any]:
    """As Python values; text that is not UTF-8 with U+FFFD, and as text what Python cannot hold: nanoseconds, dates
    that no calendar has."""
    if pa.types.is_dictionary(column.type):
        return values(column.dictionary_decode())
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        pass
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        found = column.cast(pa.large_binary()).to_pylist()
        return [value if value is None else value.decode("utf-8", "replace") for value in found]
    try:
        return list(column.cast(pa.string()).to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        return [None] * len(column)
