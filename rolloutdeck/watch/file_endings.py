"""Checks of files that are being written.

Is the file complete, which of its lines are complete, and does it continue the file that was sent?
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from pathlib import PurePath
from typing import BinaryIO

from rolloutdeck.protocol import MAX_LINE_BYTES, MAX_PART_BYTES
from rolloutdeck.watch import compression
from rolloutdeck.watch.state import SentFile

HASHED_END_BYTES = 1024  # of a growing file's start and of its sent end, whose hashes detect a replaced file
CHUNK_BYTES = 1 << 20
MIN_PARQUET_BYTES = 12  # the two marks and the length of the footer


def describe_truncation(path: PurePath) -> str:
    """Returns the message for a file that does not end as its kind requires."""
    return "is incomplete" if path.suffix in COMPLETENESS_CHECKS else "ends in the middle of a line"


def hash_open_file(file: BinaryIO) -> tuple[str, bytes | None]:
    """Returns the sha256 of a file, and its bytes if they fit into one request."""
    file.seek(0)
    body = file.read(MAX_PART_BYTES + 1)
    sha256 = hashlib.sha256(body)
    if len(body) <= MAX_PART_BYTES:
        return sha256.hexdigest(), body
    while chunk := file.read(CHUNK_BYTES):
        sha256.update(chunk)
    return sha256.hexdigest(), None


def is_complete_file(file: BinaryIO, size: int, suffix: str = "") -> bool:
    """Whether the file ends as its kind requires: by default with a line break, or with a complete JSON object."""
    if suffix in COMPLETENESS_CHECKS:
        return COMPLETENESS_CHECKS[suffix](file, size)
    if not size:
        return False
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return True
    start = max(0, size - MAX_PART_BYTES)
    file.seek(start)
    before, cut, line = file.read(size - start).rpartition(b"\n")
    if start and not cut:
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def is_complete_parquet(file: BinaryIO, size: int) -> bool:
    """A parquet file ends with its footer."""
    file.seek(max(0, size - 4))
    return file.read(4) == b"PAR1"


def is_parquet(file: BinaryIO, size: int) -> bool:
    """Whether the file has a start and an end of a Parquet file, and between them a footer of the length it states."""
    if size < MIN_PARQUET_BYTES or not is_complete_parquet(file, size):
        return False
    file.seek(0)
    start = file.read(4)
    file.seek(size - 8)
    length = int.from_bytes(file.read(4), "little")
    if start != b"PAR1" or length > size - MIN_PARQUET_BYTES:
        return False
    file.seek(size - 8 - length)
    return file.read(1) == b"\x15"  # the first field of the footer: a version


def is_complete_arrow(file: BinaryIO, size: int) -> bool:
    """An arrow stream ends with a message of length 0."""
    file.seek(max(0, size - 8))
    return file.read(8) == b"\xff\xff\xff\xff\0\0\0\0"


def is_complete_zip(file: BinaryIO, size: int) -> bool:
    """A zip archive ends with its end-of-archive record."""
    file.seek(max(0, size - 1024))
    return b"PK\x05\x06" in file.read(1024)


def is_complete_pickle(file: BinaryIO, size: int) -> bool:
    """A pickle ends with the opcode STOP."""
    file.seek(max(0, size - 1))
    return file.read(1) == b"."


def is_complete_json(file: BinaryIO, size: int) -> bool:
    """Whether the file is one complete JSON value; of more than MAX_LINE_BYTES, whether it ends with a bracket."""
    file.seek(max(0, size - 64))
    if not file.read(64).rstrip().endswith((b"]", b"}")):
        return False
    if size > MAX_LINE_BYTES:
        return True
    file.seek(0)
    try:
        json.loads(file.read())
    except (ValueError, RecursionError):
        return False
    return True


def is_complete_gzip(file: BinaryIO, size: int) -> bool:
    """Whether the gzip file can be decompressed to its end."""
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file) as gzip_file:
            while gzip_file.read(CHUNK_BYTES):
                pass
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False
    return True


def accept_zstd(file: BinaryIO, size: int) -> bool:
    """Accepts every file: zstd can't be read here, and its writers rename the files when they are complete."""
    return True


COMPLETENESS_CHECKS = {
    ".parquet": is_complete_parquet,
    ".arrow": is_complete_arrow,
    ".pt": is_complete_zip,
    ".eval": is_complete_zip,
    ".pkl": is_complete_pickle,
    ".json": is_complete_json,
    compression.GZIP: is_complete_gzip,
    compression.ZSTD: accept_zstd,
}


def read_complete_lines(file: BinaryIO, offset: int) -> bytes:
    """Returns complete lines from `offset` on: as many as fit into one request, or one longer line."""
    file.seek(offset)
    data = file.read(MAX_PART_BYTES)
    while b"\n" not in data and len(data) <= MAX_LINE_BYTES:
        chunk = file.read(MAX_PART_BYTES)
        if not chunk:
            return b""
        data += chunk
    return data[: data.rfind(b"\n") + 1]


def read_last_line(file: BinaryIO, offset: int, size: int) -> bytes:
    """Returns the bytes from `offset` to the end of the file if they are a complete JSON object without a line break;
    else empty bytes."""
    if not 0 < size - offset <= MAX_LINE_BYTES or not is_complete_file(file, size):
        return b""
    file.seek(offset)
    return file.read(size - offset)


def skip_long_line(file: BinaryIO, offset: int) -> int:
    """Returns the position behind the line at `offset`, if the line is longer than `read_complete_lines` reads and is
    complete; else `offset`."""
    file.seek(offset)
    end = offset
    while chunk := file.read(MAX_PART_BYTES):
        if b"\n" in chunk:
            end += chunk.index(b"\n") + 1
            return end if end - offset > MAX_LINE_BYTES else offset
        end += len(chunk)
    return offset


def digest_file_ends(file: BinaryIO, offset: int) -> tuple[str, str]:
    """Returns the digests of the first bytes and of the last bytes before `offset`."""
    file.seek(0)
    head = file.read(min(HASHED_END_BYTES, offset))
    file.seek(max(0, offset - HASHED_END_BYTES))
    tail = file.read(min(HASHED_END_BYTES, offset))
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest()


def is_continuation(file: BinaryIO, sent: SentFile) -> bool:
    """Whether the file still starts with the sent bytes. rsync creates a new inode at each update."""
    size = os.fstat(file.fileno()).st_size
    return size >= sent.offset and digest_file_ends(file, sent.offset) == (sent.head, sent.tail)
