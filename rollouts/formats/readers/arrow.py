"""Rows of a stream of Arrow batches, as `save_to_disk` of Hugging Face's datasets writes its shards.

What the bytes claim is held against what there is: each batch is checked whole before a value of it is read. Columns
whose values may share bytes (views, runs, unions) are refused, as are batches that came compressed, which nobody can
bound before they are unpacked. Sources: src/datasets/arrow_writer.py of huggingface/datasets 5.2; format/Message.fbs of
apache/arrow, of which `Message.header` and `RecordBatch.compression` are looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollouts.errors import UnreadableDumpError
from rollouts.formats.readers.parquet import MAX_BATCH_ROWS, ColumnValues, read_batch_rows

ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
FLAT = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_temporal, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)  # fmt: skip
NESTED = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_map,
)  # fmt: skip
MOST_TOLD = 64 << 20  # bytes of a message, without the values
BATCH, DICTIONARY = 3, 2  # kinds of messages
HEADER_KIND, HEADER, OF_DICTIONARY, COMPRESSION = 1, 2, 1, 3  # places in their tables


def read_arrow_rows(path: Path) -> Iterator[ColumnValues]:
    """Raises UnreadableDumpError; of a stream that breaks off, behind the rows that are whole."""
    try:
        with pa.memory_map(str(path)) as file:
            refuse_packed(file)
            file.seek(0)
            with pa.ipc.open_stream(file) as stream:
                refuse_shared(stream.schema)
                yield from read_batch_rows("Arrow", map(named_once, slices(stream)))
    except (pa.ArrowException, OSError, ValueError, LookupError, struct.error) as error:
        said = str(error).partition("\n")[0].rstrip(".")[:200] or type(error).__name__
        raise UnreadableDumpError(f"It is no Arrow stream that can be read: {said}.") from error


def slices(stream: Any) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        batch.validate(full=True)
        yield from (batch.slice(at, MAX_BATCH_ROWS) for at in range(0, len(batch), MAX_BATCH_ROWS))


def named_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Extensions (images, arrays of datasets) as what they are kept in."""
    plain = [column.storage if isinstance(column.type, pa.BaseExtensionType) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(plain, names=batch.schema.names)


def refuse_shared(schema: pa.Schema) -> None:
    for field in schema:
        if not is_plain(field.type):
            raise ValueError(f"its column {field.name[:80]!r} is of a type that is not read, {str(field.type)[:80]}")


def is_plain(kind: pa.DataType) -> bool:
    """Whether each of its values has bytes of its own."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return any(is_one(kind.value_type) for is_one in FLAT)
    if any(is_one(kind) for is_one in NESTED):
        return all(is_plain(kind.field(at).type) for at in range(kind.num_fields))
    return any(is_one(kind) for is_one in FLAT)


def refuse_packed(file: pa.NativeFile) -> None:
    """Raises ValueError for a batch that is compressed; what is no message is left to who reads it."""
    end = file.size()
    while len(begun := file.read(8)) == 8 and begun.startswith(ARROW_STREAM_MAGIC):
        (length,) = struct.unpack("<i", begun[4:])
        if not 0 < length <= end - file.tell():
            return
        if length > MOST_TOLD:
            raise ValueError(f"what it says of a batch is more than {MOST_TOLD >> 20} MiB")
        message = file.read(length)
        if compressed(message):
            raise ValueError("it is compressed inside; write it without compression")
        body = body_length(message)
        if not 0 <= body <= end - file.tell():
            return
        file.seek(file.tell() + body)


def compressed(message: bytes) -> bool:
    """Raises struct.error where an offset leads out of the message."""
    root = offset(message, 0)
    kind, header = field_at(message, root, HEADER_KIND), field_at(message, root, HEADER)
    if not kind or not header or message[kind] not in (BATCH, DICTIONARY):
        return False
    batch = offset(message, header)
    if message[kind] == DICTIONARY:
        inner = field_at(message, batch, OF_DICTIONARY)
        batch = offset(message, inner) if inner else batch
    return bool(field_at(message, batch, COMPRESSION))


def body_length(message: bytes) -> int:
    at = field_at(message, offset(message, 0), 3)
    return int(struct.unpack_from("<q", message, at)[0]) if at else 0


def offset(message: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", message, at)[0])


def field_at(message: bytes, table: int, place: int) -> int:
    """Where the field at this place of a table lies; 0 where the table has none."""
    begin = table - int(struct.unpack_from("<i", message, table)[0])
    if begin < 0:
        raise struct.error("a table of it lies before its beginning")
    (size,) = struct.unpack_from("<H", message, begin)
    if 4 + 2 * place >= size:
        return 0
    at = int(struct.unpack_from("<H", message, begin + 4 + 2 * place)[0])
    return table + at if at else 0
