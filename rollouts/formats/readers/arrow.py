"""Reads the rows of a stream of Arrow batches, such as the shards of `save_to_disk` of Hugging Face's datasets.

The bytes are not trusted: each batch is validated completely before a value of it is read. Refused are columns whose
values may share bytes (views, runs, unions), and compressed batches, because their size is unknown before they are
decompressed. Sources: src/datasets/arrow_writer.py of huggingface/datasets 5.2; format/Message.fbs of apache/arrow, for
`Message.header` and `RecordBatch.compression`.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollouts.errors import UnreadableDumpError
from rollouts.formats.readers.parquet import MAX_BATCH_ROWS, ColumnValues, read_batch_rows, summarize_error

ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
FLAT = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_temporal, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)  # fmt: skip
NESTED = (
    pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_map,
)  # fmt: skip
MAX_METADATA_BYTES = 64 << 20  # of a message, without its body
BATCH, DICTIONARY = 3, 2  # kinds of messages
# Positions of fields in their tables.
HEADER_KIND, HEADER, BODY_LENGTH, DICTIONARY_DATA, COMPRESSION = 1, 2, 3, 1, 3


def read_arrow_rows(path: Path) -> Iterator[ColumnValues]:
    """Raises UnreadableDumpError. A truncated stream yields its complete rows first."""
    try:
        with pa.memory_map(str(path)) as file:
            check_uncompressed(file)
            file.seek(0)
            with pa.ipc.open_stream(file) as stream:
                for field in stream.schema:
                    if not owns_bytes(field.type):
                        kind = str(field.type)[:80]
                        raise ValueError(f"its column {field.name[:80]!r} has a type that is not supported, {kind}")
                yield from read_batch_rows("Arrow", map(unwrap_extensions, slice_batches(stream)))
    except (pa.ArrowException, OSError, ValueError, LookupError, struct.error) as error:
        raise UnreadableDumpError(f"It is not a readable Arrow stream: {summarize_error(error)}.") from error


def slice_batches(stream: Any) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        batch.validate(full=True)
        yield from (batch.slice(start, MAX_BATCH_ROWS) for start in range(0, len(batch), MAX_BATCH_ROWS))


def unwrap_extensions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replaces extension columns (images, arrays of datasets) by their storage."""
    plain = [column.storage if isinstance(column.type, pa.BaseExtensionType) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(plain, names=batch.schema.names)


def owns_bytes(kind: pa.DataType) -> bool:
    """Returns whether no two values of this type share bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        return owns_bytes(kind.storage_type)
    if any(is_type(kind) for is_type in NESTED):
        return all(owns_bytes(kind.field(index).type) for index in range(kind.num_fields))
    flat = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_type(flat) for is_type in FLAT)


def check_uncompressed(file: pa.NativeFile) -> None:
    """Raises ValueError if a batch is compressed. Stops at bytes that are not a message: the reader reports them."""
    end = file.size()
    while len(prefix := file.read(8)) == 8 and prefix.startswith(ARROW_STREAM_MAGIC):
        (length,) = struct.unpack("<i", prefix[4:])
        if not 0 < length <= end - file.tell():
            return
        if length > MAX_METADATA_BYTES:
            raise ValueError(f"the metadata of a batch is more than {MAX_METADATA_BYTES >> 20} MiB")
        message = file.read(length)
        root = follow_offset(message, 0)
        if is_compressed(message, root):
            raise ValueError("its batches are compressed; write it without compression")
        position = find_field(message, root, BODY_LENGTH)
        body = int(struct.unpack_from("<q", message, position)[0]) if position else 0
        if not 0 <= body <= end - file.tell():
            return
        file.seek(file.tell() + body)


def is_compressed(message: bytes, root: int) -> bool:
    """Raises struct.error if an offset is outside the message."""
    kind, header = find_field(message, root, HEADER_KIND), find_field(message, root, HEADER)
    if not kind or not header or message[kind] not in (BATCH, DICTIONARY):
        return False
    batch = follow_offset(message, header)
    if message[kind] == DICTIONARY:
        data = find_field(message, batch, DICTIONARY_DATA)
        batch = follow_offset(message, data) if data else batch
    return bool(find_field(message, batch, COMPRESSION))


def follow_offset(message: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", message, position)[0])


def find_field(message: bytes, table: int, number: int) -> int:
    """Returns the position of a field of a FlatBuffers table; 0 if the table does not have it."""
    start = table - int(struct.unpack_from("<i", message, table)[0])
    if start < 0:
        raise struct.error("a table of it starts before the message")
    (size,) = struct.unpack_from("<H", message, start)
    if 4 + 2 * number >= size:
        return 0
    offset = int(struct.unpack_from("<H", message, start + 4 + 2 * number)[0])
    return table + offset if offset else 0
