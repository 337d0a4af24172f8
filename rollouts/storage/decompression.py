"""A dump that came compressed, as gzip or zstd, as the plain bytes that its format reads. What is kept is what came."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import pyarrow as pa

from rolloutdeck.protocol import MAX_DUMP_BYTES
from rollouts.errors import UnreadableDumpError

CODECS = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes
MAGIC_BYTES = 4
CHUNK = 128 << 10


def open_decompressed(stream: io.BufferedReader[Any]) -> BinaryIO:
    """The stream, or what it holds compressed; that stream raises UnreadableDump where it breaks off."""
    begun = stream.peek(MAGIC_BYTES)
    codec = next((codec for magic, codec in CODECS.items() if begun.startswith(magic)), "")
    return io.BufferedReader(DecompressedStream(stream, codec), CHUNK) if codec else stream


class DecompressedStream(io.RawIOBase):
    """Plain bytes, at most as many as a dump may have."""

    def __init__(self, stream: BinaryIO, codec: str) -> None:
        self.codec, self.done = codec, 0
        self.inner = pa.CompressedInputStream(pa.PythonFile(stream, "r"), codec)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self.inner.read(len(buffer))
        except (OSError, pa.ArrowException) as error:
            raise UnreadableDumpError(f"It is compressed with {self.codec} and not whole: {error}.") from error
        self.done += len(piece)
        if self.done > MAX_DUMP_BYTES:
            raise UnreadableDumpError(f"It unpacks to more than {MAX_DUMP_BYTES >> 30} GiB.")
        buffer[: len(piece)] = piece
        return len(piece)
