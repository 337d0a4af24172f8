"""Reads dumps that were uploaded as gzip or zstd. The stored file is the upload; it is decompressed on reading."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import pyarrow as pa

from rolloutdeck.protocol import MAX_DUMP_BYTES
from rollouts.errors import UnreadableDumpError
from rollouts.storage.files import is_file_lost

CODECS = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes
MAGIC_BYTES = 4
BUFFER_BYTES = 128 << 10


def open_decompressed(stream: io.BufferedReader[Any]) -> BinaryIO:
    """Returns the stream, decompressed if it is gzip or zstd. Reading raises UnreadableDumpError if it is truncated,
    and OSError if the stream cannot be read."""
    first_bytes = stream.peek(MAGIC_BYTES)
    codec = next((codec for magic, codec in CODECS.items() if first_bytes.startswith(magic)), "")
    return io.BufferedReader(DecompressedStream(stream, codec), BUFFER_BYTES) if codec else stream


class DecompressedStream(io.RawIOBase):
    """The decompressed bytes, limited to MAX_DUMP_BYTES."""

    def __init__(self, stream: BinaryIO, codec: str) -> None:
        self.codec, self.bytes_read = codec, 0
        self.inner = pa.CompressedInputStream(pa.PythonFile(stream, "r"), codec)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes_read

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self.inner.read(len(buffer))
        except (OSError, pa.ArrowException) as error:
            if not is_file_lost(error):  # the disk or the bucket does not answer; the next try may read it
                raise
            message = f"It is compressed with {self.codec} and truncated or damaged: {error}."
            raise UnreadableDumpError(message) from error
        self.bytes_read += len(piece)
        if self.bytes_read > MAX_DUMP_BYTES:
            raise UnreadableDumpError(f"It decompresses to more than {MAX_DUMP_BYTES >> 30} GiB.")
        buffer[: len(piece)] = piece
        return len(piece)
