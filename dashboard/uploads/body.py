"""A body on its way to disk: inflated, counted and hashed as it comes, never held in memory."""

from __future__ import annotations

import fcntl
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rest_framework.exceptions import Throttled

from rolloutdeck.protocol import MAX_EXPANSION_RATIO
from rollouts.errors import HashMismatchError, InvalidInputError, StorageUnavailableError, TooLargeError

PIECE = 1 << 20
# A short body may expand as it likes: this much costs little, and a collapsed model writes a word ten thousand times.
SMALL = 64 << 20


class UploadWriter:
    """Writes what it is given to `out`; at most `most` plain bytes. `read` counts bytes as sent, `size` plain ones.

    A part is not `hashed`: the whole will be.
    """

    def __init__(self, out: BinaryIO, *, gzipped: bool, most: int, hashed: bool = True) -> None:
        self.out, self.most, self.gzipped, self.hashed = out, most, gzipped, hashed
        self.hash = hashlib.sha256()
        self.read = self.size = 0
        self.inflate = zlib.decompressobj(wbits=31)

    def write(self, data: bytes) -> None:
        """Raises TooLarge, BadInput, StorageUnavailable."""
        self.read += len(data)
        for piece in self._inflated(data) if self.gzipped else (data,):
            self.size += len(piece)
            self._check()
            if self.hashed:
                self.hash.update(piece)
            try:
                self.out.write(piece)
            except OSError as error:
                raise StorageUnavailableError(f"The server cannot write what arrives: {error.strerror}.") from error

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self.inflate.eof:  # gzip allows several members, one after the other
                    self.inflate = zlib.decompressobj(wbits=31)
                yield self.inflate.decompress(data, PIECE)
                data = self.inflate.unconsumed_tail or self.inflate.unused_data
        except zlib.error as error:
            raise InvalidInputError("The body says Content-Encoding: gzip and is no gzip stream.") from error

    def _check(self) -> None:
        if self.size > self.most:
            raise TooLargeError(f"The body has more than the {self.most} bytes that are allowed here.")
        if self.gzipped and self.size > max(SMALL, MAX_EXPANSION_RATIO * self.read):
            raise TooLargeError(f"The body expands more than {MAX_EXPANSION_RATIO} times; send it without gzip.")

    def end(self) -> str:
        """The sha256 of the plain bytes if they are hashed; they are now on disk as far as the operating system is
        concerned."""
        if self.gzipped and self.read and not self.inflate.eof:
            raise InvalidInputError("The gzip stream ends in the middle.")
        try:
            self.out.flush()
        except OSError as error:
            raise StorageUnavailableError(f"The server cannot write what arrives: {error.strerror}.") from error
        return self.hash.hexdigest()


class PartialUpload:
    """A body of `total` bytes that travels in parts. One request at a time may write to it."""

    def __init__(self, path: Path, total: int) -> None:
        self.path, self.total = path, total

    def have(self) -> int:
        """Bytes so far."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


class LockedPartialUpload:
    """The open file of `Parts`, locked against a second sender; cut back to where it was unless `keep` is called."""

    def __init__(self, parts: PartialUpload) -> None:
        self.parts = parts
        self.file = os.fdopen(os.open(parts.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self.kept = False
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.file.close()
            raise Throttled(detail="Another request is sending parts of this dump; try again in a moment.") from error
        self.start = self.file.seek(0, os.SEEK_END)
        if os.fstat(self.file.fileno()).st_nlink == 0:
            self.file.close()
            raise Throttled(detail="Another request has just completed this dump; try again in a moment.")

    def keep(self) -> None:
        self.kept = True

    def close(self) -> None:
        if not self.kept:
            self.file.truncate(self.start)
            if self.start == 0:
                self.parts.drop()
        self.file.close()


@contextmanager
def create_file(path: Path) -> Iterator[BinaryIO]:
    """A new file at `path`, removed if the block does not end well."""
    try:
        with path.open("wb") as out:
            yield out
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_hash(found: str, wanted: str) -> None:
    """Raises HashMismatch."""
    if found != wanted:
        raise HashMismatchError(
            f"The body's sha256 is {found[:12]}…, the address says {wanted[:12]}…; send the bytes again."
        )


def compute_file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
