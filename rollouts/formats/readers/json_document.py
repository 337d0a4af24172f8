"""Reads a dump that is one JSON value."""

import io
from typing import Any, BinaryIO

import orjson

from rolloutdeck.protocol import MAX_LINE_BYTES
from rollouts.errors import UnreadableDumpError
from rollouts.formats.readers.jsonl import BOM, parse_json_leniently
from rollouts.formats.readers.memory import check_json_memory

READ_BYTES = 1 << 20


def read_json_document(stream: BinaryIO) -> tuple[Any, bool]:
    """Returns the value, and False if its bytes were not UTF-8. Raises UnreadableDumpError."""
    return parse_json_document(read_document_bytes(stream))


def read_document_bytes(stream: BinaryIO) -> bytes:
    """Raises UnreadableDumpError if the document is too long or its values need too much memory."""
    body = _read_at_most(stream, MAX_LINE_BYTES + 1)
    if len(body) > MAX_LINE_BYTES:
        raise UnreadableDumpError(f"It is one JSON value of more than {MAX_LINE_BYTES >> 20} MiB, too long to read.")
    try:
        check_json_memory(body)
    except ValueError as error:
        raise UnreadableDumpError(f"It is one JSON value: {error}.") from None
    return body.removeprefix(BOM)


def _read_at_most(stream: BinaryIO, size: int) -> bytes:
    """Reads in parts: `stream.read(size)` allocates all `size` bytes at once, whatever the length of the file."""
    sink = io.BytesIO()
    while part := stream.read(min(size - sink.tell(), READ_BYTES)):
        sink.write(part)
    return sink.getvalue()


def parse_json_document(body: bytes) -> tuple[Any, bool]:
    """Parses a JSON document. Returns (value, whether it is UTF-8). Raises UnreadableDumpError."""
    try:
        return orjson.loads(body), True
    except orjson.JSONDecodeError:
        pass
    try:
        return parse_json_leniently(body)
    except ValueError as error:
        raise UnreadableDumpError(f"It is {error}; its writer was stopped, or is still writing.") from None
