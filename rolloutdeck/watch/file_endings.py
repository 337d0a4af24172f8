"""How files that are written end: whether one is whole, which of its lines are, whether it is the one that was sent."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import PurePath
from typing import BinaryIO

from rolloutdeck.protocol import MAX_LINE_BYTES, MAX_PART_BYTES
from rolloutdeck.watch import compression
from rolloutdeck.watch.state import SentFile

END_BYTES = 1024  # of a growing file's beginning and of its sent end, by which a new file is told from the old one
CHUNK = 1 << 20


def describe_truncation(path: PurePath) -> str:
    """What is said of a file that does not end as its kind does."""
    return "is not whole" if path.suffix in COMPLETENESS_CHECKS else "ends in the middle of a line"


def hash_open_file(file: BinaryIO) -> tuple[str, bytes | None]:
    """sha256 of a file from its beginning, and its bytes where they fit into one request."""
    file.seek(0)
    body = file.read(MAX_PART_BYTES + 1)
    sha256 = hashlib.sha256(body)
    if len(body) <= MAX_PART_BYTES:
        return sha256.hexdigest(), body
    while more := file.read(CHUNK):
        sha256.update(more)
    return sha256.hexdigest(), None


def is_complete_file(file: BinaryIO, size: int, suffix: str = "") -> bool:
    """Whether the file ends as its kind does: by default with a line break, or with JSON that is whole without one."""
    if suffix in COMPLETENESS_CHECKS:
        return COMPLETENESS_CHECKS[suffix](file, size)
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


def parquet_ends(file: BinaryIO, size: int) -> bool:
    """Its footer is written last."""
    file.seek(max(0, size - 4))
    return file.read(4) == b"PAR1"


def arrow_ends(file: BinaryIO, size: int) -> bool:
    """A message without length ends a stream."""
    file.seek(max(0, size - 8))
    return file.read(8) == b"\xff\xff\xff\xff\0\0\0\0"


def zip_ends(file: BinaryIO, size: int) -> bool:
    """The record that ends a zip archive is written last."""
    file.seek(max(0, size - 1024))
    return b"PK\x05\x06" in file.read(1024)


def pickle_ends(file: BinaryIO, size: int) -> bool:
    """Its last opcode is STOP."""
    file.seek(max(0, size - 1))
    return file.read(1) == b"."


def json_ends(file: BinaryIO, size: int) -> bool:
    """One value of JSON that is there to its end. What is too large to look at counts as whole when it is closed."""
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


def gzip_ends(file: BinaryIO, size: int) -> bool:
    return compression.is_complete_gzip(file)


def zstd_ends(file: BinaryIO, size: int) -> bool:
    """Nothing here can look into it; what writes such files names them when they are whole."""
    return True


COMPLETENESS_CHECKS = {
    ".parquet": parquet_ends, ".arrow": arrow_ends, ".pt": zip_ends, ".eval": zip_ends, ".pkl": pickle_ends,
    ".json": json_ends, compression.GZIP: gzip_ends, compression.ZSTD: zstd_ends,
}  # fmt: skip


def read_complete_lines(file: BinaryIO, offset: int) -> bytes:
    """Whole lines from `offset` on: as many as fit into one request, or one longer line."""
    file.seek(offset)
    read = file.read(MAX_PART_BYTES)
    while b"\n" not in read and len(read) <= MAX_LINE_BYTES:
        more = file.read(MAX_PART_BYTES)
        if not more:
            return b""
        read += more
    return read[: read.rfind(b"\n") + 1]


def hash_file_ends(file: BinaryIO, offset: int) -> tuple[str, str]:
    """Digests of the first bytes and of the last ones before `offset`."""
    file.seek(0)
    head = file.read(min(END_BYTES, offset))
    file.seek(max(0, offset - END_BYTES))
    tail = file.read(min(END_BYTES, offset))
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest()


def is_continuation(file: BinaryIO, sent: SentFile) -> bool:
    """Whether what was sent is still the beginning of this file. A new inode alone says nothing: rsync makes one at
    each update of the same file."""
    size = os.fstat(file.fileno()).st_size
    return size >= sent.offset and hash_file_ends(file, sent.offset) == (sent.head, sent.tail)
