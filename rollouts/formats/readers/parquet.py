"""Reads the rows of Parquet files with any column types. Memory and total size are limited."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rolloutdeck.protocol import MAX_DUMP_BYTES, MAX_LINE_BYTES, number_repeated_names
from rollouts.errors import UnreadableDumpError
from rollouts.formats.readers.memory import LIST_BYTES, MAX_MEMORY_RATIO, OBJECT_BYTES

MAX_BATCH_ROWS = 256
MAX_BATCH_BYTES = 64 << 20  # a batch that unfolds to more is read row by row
MAX_ROWS = 1 << 22
TEXT_TYPES = ("NONE", "STRING", "JSON", "ENUM")  # logical types of bytes that may be text; the others are numbers

ColumnValues = dict[str, Any]


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Stores a repeated text once in memory. Raises UnreadableDumpError, also if a read in the block fails."""
    try:
        with pq.ParquetFile(path) as file:
            columns = [file.schema.column(index) for index in range(len(file.schema))]
            byte_columns = [column for column in columns if column.physical_type == "BYTE_ARRAY"]
            texts = [column.path for column in byte_columns if column.logical_type.type in TEXT_TYPES]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableDumpError(f"It is not a readable Parquet file: {summarize_error(error)}.") from error


def summarize_error(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")[:200] or type(error).__name__


def read_parquet_rows(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[ColumnValues]:
    """Raises UnreadableDumpError if the values unfold to more than a dump, or a row of it, may have."""
    if (count := file.metadata.num_rows) > MAX_ROWS:
        raise UnreadableDumpError(f"The Parquet file declares {count:,} rows; at most {MAX_ROWS:,} are read.")
    yield from read_batch_rows("Parquet", file.iter_batches(batch_size=MAX_BATCH_ROWS, columns=columns))


def read_batch_rows(kind: str, batches: Iterable[pa.RecordBatch]) -> Iterator[ColumnValues]:
    """Yields the rows of batches of at most `MAX_BATCH_ROWS`. Raises UnreadableDumpError like `read_parquet_rows`."""
    rows, total_bytes = 0, 0
    for batch in batches:
        batch_bytes = count_batch_bytes(batch)
        rows, total_bytes = rows + len(batch), total_bytes + batch_bytes
        if rows > MAX_ROWS:
            raise UnreadableDumpError(f"The {kind} file has more than {MAX_ROWS:,} rows.")
        if total_bytes > MAX_DUMP_BYTES:
            raise UnreadableDumpError(f"The {kind} file unfolds to more than {MAX_DUMP_BYTES >> 30} GiB.")
        if batch_bytes + count_container_bytes(batch) <= MAX_BATCH_BYTES:
            yield from iterate_rows(batch)
            continue
        for start in range(len(batch)):
            row = batch.slice(start, 1)
            row_bytes, number = count_batch_bytes(row), rows - len(batch) + start + 1
            if row_bytes > MAX_LINE_BYTES:
                raise UnreadableDumpError(f"A row of the {kind} file unfolds to more than {MAX_LINE_BYTES >> 20} MiB.")
            if count_container_bytes(row) > max(MAX_BATCH_BYTES, MAX_MEMORY_RATIO * row_bytes):
                raise UnreadableDumpError(
                    f"Row {number:,} of the {kind} file has so many small lists or objects that they need more than "
                    f"{MAX_MEMORY_RATIO} times its size in memory."
                )
            yield from iterate_rows(row)


def iterate_rows(batch: pa.RecordBatch) -> Iterator[ColumnValues]:
    names = number_repeated_names(batch.schema.names)
    columns = {name: to_python(column) for name, column in zip(names, batch.columns, strict=True)}
    yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def count_batch_bytes(batch: pa.RecordBatch) -> int:
    return sum(map(count_bytes, batch.columns))


def count_container_bytes(batch: pa.RecordBatch) -> int:
    """Returns the memory that the lists and objects of the batch need in Python."""
    return sum(map(count_column_containers, batch.columns))


def count_column_containers(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return LIST_BYTES * len(column) + count_column_containers(column.flatten())
    if pa.types.is_map(kind):
        start, end = int(column.offsets[0].as_py()), int(column.offsets[-1].as_py())
        parts = (part.slice(start, end - start) for part in (column.keys, column.items))
        return LIST_BYTES * (len(column) + end - start) + sum(map(count_column_containers, parts))
    if pa.types.is_struct(kind):
        return OBJECT_BYTES * len(column) + sum(map(count_column_containers, column.flatten()))
    return 0


def count_bytes(column: pa.Array) -> int:
    """Returns the bytes of a column. A shared value counts for each use; a value without bytes counts as one."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = column.dictionary
        if not pa.types.is_string(values.type) and not pa.types.is_binary(values.type):
            return int(column.dictionary_decode().nbytes)
        lengths = pc.cast(pc.binary_length(values), pa.int64())
        return len(column) + (pc.sum(lengths.take(column.indices)).as_py() or 0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return len(column) + count_bytes(column.flatten())
    if pa.types.is_map(kind):
        start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return len(column) + sum(count_bytes(part.slice(start, end - start)) for part in (column.keys, column.items))
    if pa.types.is_struct(kind):
        return len(column) + sum(map(count_bytes, column.flatten()))
    return max(int(column.nbytes), len(column))


def to_microseconds(column: pa.Array) -> pa.Array:
    """Without it pyarrow returns values of pandas if that is installed. Raises ArrowException if digits are lost."""
    kind = column.type
    if getattr(kind, "unit", "") != "ns":
        return column
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz))
    return column.cast(pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us"))


def to_python(column: pa.Array) -> list[Any]:
    """Invalid UTF-8 becomes U+FFFD. Values that Python cannot represent, such as nanoseconds, become text."""
    if pa.types.is_dictionary(column.type):
        return to_python(column.dictionary_decode())
    try:
        return list(to_microseconds(column).to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        pass
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        values = column.cast(pa.large_binary()).to_pylist()
        return [value if value is None else value.decode("utf-8", "replace") for value in values]
    try:
        return list(column.cast(pa.string()).to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        return [None] * len(column)
