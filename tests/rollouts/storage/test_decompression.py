"""Dumps that were uploaded as gzip."""

from __future__ import annotations

import errno
import gzip
import io
import os
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.storage import open_decompressed

PACKED = gzip.compress(os.urandom(1 << 20))


class FailingStream(io.RawIOBase):
    """A disk that does not answer after the first half."""

    def __init__(self) -> None:
        self.left = PACKED[: len(PACKED) // 2]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.left:
            raise OSError(errno.EIO, "Input/output error")
        piece, self.left = self.left[: len(buffer)], self.left[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def test_a_read_error_of_the_disk_is_not_reported_as_damage() -> None:
    stream = open_decompressed(io.BufferedReader(FailingStream()))
    with pytest.raises(OSError) as failure:
        stream.read()
    assert failure.value.errno == errno.EIO


def test_a_truncated_file_is_damaged() -> None:
    stream = open_decompressed(io.BufferedReader(io.BytesIO(PACKED[: len(PACKED) // 2])))  # type: ignore[arg-type]
    with pytest.raises(UnreadableDumpError, match="gzip and truncated or damaged"):
        stream.read()
