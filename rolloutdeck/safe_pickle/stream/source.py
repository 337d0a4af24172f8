"""A window of a file that is read by position. The file is never read into memory as a whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rolloutdeck.safe_pickle.errors import SafePickleError


class ByteSource:
    """`size` bytes of an open file or of bytes in memory. Positions count from the window's first byte.

    A window shares the file of the source it was made from. Only the source that opened the file closes it.
    """

    __slots__ = ("_file", "_start", "size")

    def __init__(self, file: int | bytes, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self.size = size

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ByteSource:
        """Returns a context manager over the complete file. Raises OSError."""
        file = os.open(Path(path), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return cls(file, 0, os.fstat(file).st_size)

    @classmethod
    def from_bytes(cls, data: bytes) -> ByteSource:
        return cls(data, 0, len(data))

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._file, int):
            with suppress(OSError):
                os.close(self._file)

    @property
    def start(self) -> int:
        """The position of the first byte in the file. Raises SafePickleError for bytes in memory."""
        if isinstance(self._file, bytes):
            raise SafePickleError("a part of it is so short that it is not read from the file by position")
        return self._start

    def read(self, at: int, length: int) -> bytes:
        """Returns exactly `length` bytes from position `at`. Raises SafePickleError if the source is too short."""
        self._check_range(at, length)
        if isinstance(self._file, bytes):
            return self._file[self._start + at : self._start + at + length]
        return _read(self._file, self._start + at, length)

    def read_into(self, at: int, buffer: memoryview) -> None:
        """Fills `buffer`, a view of bytes, without a copy. Raises SafePickleError if the source is too short."""
        self._check_range(at, len(buffer))
        if isinstance(self._file, bytes):
            buffer[:] = memoryview(self._file)[self._start + at : self._start + at + len(buffer)]
        else:
            _read_into(self._file, self._start + at, buffer)

    def _check_range(self, at: int, length: int) -> None:
        if at < 0 or length < 0 or at + length > self.size:
            message = f"it ends after {self.size:,} bytes, before the {length:,} bytes that should begin at {at:,}"
            raise SafePickleError(message)

    def window(self, start: int, length: int) -> ByteSource:
        """Returns a part as a separate source. Raises SafePickleError if it reaches beyond this one."""
        if start < 0 or length < 0 or start + length > self.size:
            raise SafePickleError(f"a part of {length:,} bytes at {start:,} reaches beyond the end at {self.size:,}")
        return ByteSource(self._file, self._start + start, length)


def _read(file: int, at: int, length: int) -> bytes:
    parts = []
    while length:  # the kernel returns at most 2 GiB at once
        part = os.pread(file, length, at)
        if not part:
            raise SafePickleError("the file became shorter while it was read")
        parts.append(part)
        at += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_into(file: int, at: int, buffer: memoryview) -> None:
    filled = 0
    while filled < len(buffer):
        count = os.preadv(file, [buffer[filled:]], at + filled)
        if not count:
            raise SafePickleError("the file became shorter while it was read")
        filled += count
