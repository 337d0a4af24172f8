"""Rows of a Parquet file that somebody else wrote: bounded, and whatever type a column has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rolloutdeck import wire
from rollouts.errors import UnreadableDump

AT_ONCE = 64  # rows in memory
MOST_ROWS = 1 << 22

Row = dict[str, Any]


def rows(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Raises UnreadableDump where a few bytes unfold to more than a dump may have."""
    if (count := file.metadata.num_rows) > MOST_ROWS:
        raise UnreadableDump(f"The Parquet file says that it has {count:,} rows; at most {MOST_ROWS:,} are read.")
    unfolded = 0
    for batch in file.iter_batches(batch_size=AT_ONCE, columns=columns):
        unfolded += sum(map(size, batch.columns))
        if unfolded > wire.MAX_DUMP_BYTES:
            raise UnreadableDump(f"The Parquet file unfolds to more than {wire.MAX_DUMP_BYTES >> 30} GiB.")
        columns_of = {field.name: values(column) for field, column in zip(batch.schema, batch.columns, strict=True)}
        yield from (dict(zip(columns_of, row, strict=True)) for row in zip(*columns_of.values(), strict=True))


def size(column: pa.Array) -> int:
    """Bytes, where a value that is kept once and named often counts each time."""
    if pa.types.is_dictionary(column.type):
        return int(column.dictionary_decode().nbytes)
    return len(repr(values(column))) if "dictionary<" in str(column.type) else int(column.nbytes)


def values(column: pa.Array) -> list[Any]:
    """As Python values; text that is not UTF-8 with U+FFFD, and as text what Python cannot hold: nanoseconds, dates
    that no calendar has."""
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
