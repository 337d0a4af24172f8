"""A window of a file, read by position and never whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rolloutdeck.safe_pickle.errors import SafePickleError


class ByteSource:
    """`size` bytes of an open file, or of bytes in memory; positions count from the window's first byte.

    A window shares its file with the source that was opened: only that one closes it.
    """

    __slots__ = ("_file", "_start", "size")

    def __init__(self, file: int | bytes, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self.size = size

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ByteSource:
        """A context manager over the whole file. Raises OSError."""
        file = os.open(Path(path), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return cls(file, 0, os.fstat(file).st_size)

    @classmethod
    def of(cls, data: bytes) -> ByteSource:
        """Bytes that are in memory anyway."""
        return cls(data, 0, len(data))

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._file, int):
            with suppress(OSError):
                os.close(self._file)

    @property
    def start(self) -> int:
        """Where its first byte stands in the file. Raises SafePickleError for bytes in memory."""
        if isinstance(self._file, bytes):
            raise SafePickleError("a part of it is so short that it was not left in the file")
        return self._start

    def read(self, at: int, length: int) -> bytes:
        """Exactly `length` bytes from position `at`. Raises SafePickleError when they are not there."""
        if at < 0 or length < 0 or at + length > self.size:
            raise SafePickleError(
                f"it ends after {self.size:,} bytes, before the {length:,} bytes that should begin at {at:,}"
            )
        if isinstance(self._file, bytes):
            return self._file[self._start + at : self._start + at + length]
        return _read(self._file, self._start + at, length)

    def read_into(self, at: int, buffer: memoryview) -> None:
        """Fills `buffer`, plain bytes, from position `at` without another copy. Raises SafePickleError when it ends
        before."""
        if at < 0 or at + len(buffer) > self.size:
            raise SafePickleError(
                f"it ends after {self.size:,} bytes, before the {len(buffer):,} that should begin at {at:,}"
            )
        if isinstance(self._file, bytes):
            buffer[:] = memoryview(self._file)[self._start + at : self._start + at + len(buffer)]
        else:
            _read_into(self._file, self._start + at, buffer)

    def window(self, start: int, length: int) -> ByteSource:
        """A part as a source of its own. Raises SafePickleError when it reaches beyond this one."""
        if start < 0 or length < 0 or start + length > self.size:
            raise SafePickleError(f"a part of {length:,} bytes at {start:,} reaches beyond the end at {self.size:,}")
        return ByteSource(self._file, self._start + start, length)


def _read(file: int, at: int, length: int) -> bytes:
    parts = []
    while length:  # the kernel gives at most 2 GiB at once
        part = os.pread(file, length, at)
        if not part:
            raise SafePickleError("the file became shorter while it was read")
        parts.append(part)
        at += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_into(file: int, at: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        more = os.preadv(file, [buffer[done:]], at + done)
        if not more:
            raise SafePickleError("the file became shorter while it was read")
        done += more
