"""Receives an upload: decompresses, counts and hashes the body in chunks on its way to disk."""

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rest_framework.exceptions import Throttled

from rolloutdeck.lib import try_lock
from rolloutdeck.protocol import MAX_EXPANSION_RATIO
from rollouts.errors import HashMismatchError, InvalidInputError, StorageUnavailableError, TooLargeError
from rollouts.storage import append_shared_parts, delete_shared_parts, has_shared_parts, share_part

CHUNK_BYTES = 1 << 20
GZIP_PIECE_BYTES = 16 << 10  # given to zlib at once: after each member of a gzip stream it copies the rest of the piece
# A small body may expand further: that costs little, and a collapsed model repeats a word ten thousand times.
MIN_LIMITED_BYTES = 64 << 20


class UploadWriter:
    """Writes a body to `file`, at most `max_bytes` plain bytes. `read` counts received bytes, `size` plain bytes.

    A part is not hashed; the complete file is.
    """

    def __init__(self, file: BinaryIO, *, gzipped: bool, max_bytes: int, hashed: bool = True) -> None:
        self.file, self.max_bytes, self.gzipped, self.hashed = file, max_bytes, gzipped, hashed
        self.hash = hashlib.sha256()
        self.read = self.size = 0
        self.decompressor = zlib.decompressobj(wbits=31)

    def write(self, data: bytes) -> None:
        """Raises TooLargeError, InvalidInputError, StorageUnavailableError."""
        self.read += len(data)
        for chunk in self._decompress(data) if self.gzipped else (data,):
            self.size += len(chunk)
            if self.size > self.max_bytes:
                raise TooLargeError(f"The body has more than the {self.max_bytes} bytes that are allowed here.")
            if self.gzipped and self.size > max(MIN_LIMITED_BYTES, MAX_EXPANSION_RATIO * self.read):
                raise TooLargeError(f"The body expands more than {MAX_EXPANSION_RATIO} times. Send it without gzip.")
            if self.hashed:
                self.hash.update(chunk)
            with report_write_errors():
                self.file.write(chunk)

    def _decompress(self, data: bytes) -> Iterator[bytes]:
        try:
            for start in range(0, len(data), GZIP_PIECE_BYTES):
                piece = data[start : start + GZIP_PIECE_BYTES]
                while piece:
                    if self.decompressor.eof:  # a gzip stream can have several members
                        self.decompressor = zlib.decompressobj(wbits=31)
                    yield self.decompressor.decompress(piece, CHUNK_BYTES)
                    piece = self.decompressor.unconsumed_tail or self.decompressor.unused_data
        except zlib.error as error:
            raise InvalidInputError("The body has Content-Encoding: gzip, but is not a gzip stream.") from error

    def finish(self) -> None:
        """Flushes the file. Raises InvalidInputError, StorageUnavailableError."""
        if self.gzipped and self.read and not self.decompressor.eof:
            raise InvalidInputError("The gzip stream is truncated.")
        with report_write_errors():
            self.file.flush()


@contextmanager
def report_write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write the body: {error.strerror}.") from error


class PartialUpload:
    """A file of `total` bytes that is sent in parts. Only one request at a time writes to it."""

    def __init__(self, path: Path, total: int) -> None:
        self.path, self.total = path, total

    def count_bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def append_shared_parts(self) -> None:
        """Appends the parts that other machines have received, unless another request writes to the file. Raises
        OSError."""
        if has_shared_parts():
            with suppress(Throttled):
                locked = LockedPartialUpload(self)
                try:
                    append_shared_parts(self.path.name, locked.file)
                    locked.saved = True
                finally:
                    locked.close()

    def forget_parts(self) -> None:
        """Deletes the parts that other machines would append. The upload is complete or useless."""
        delete_shared_parts(self.path.name)


class LockedPartialUpload:
    """The open file of a partial upload, locked. `close` truncates it to its old size `start` unless `saved` is set."""

    def __init__(self, upload: PartialUpload) -> None:
        self.path, self.saved = upload.path, False
        self.file = os.fdopen(os.open(upload.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        if try_lock(self.file.fileno()) is False:
            self.file.close()
            raise Throttled(detail="Another request is sending parts of this dump. Try again in a moment.")
        self.start = self.file.seek(0, os.SEEK_END)
        if os.fstat(self.file.fileno()).st_nlink == 0:
            self.file.close()
            raise Throttled(detail="Another request has just completed this dump. Try again in a moment.")

    def share(self) -> None:
        """Stores the new bytes for other machines. Raises OSError."""
        share_part(self.path.name, self.file, self.start)

    def close(self) -> None:
        if not self.saved:
            self.file.truncate(self.start)
            if self.start == 0:
                self.path.unlink(missing_ok=True)
        self.file.close()


@contextmanager
def create_file(path: Path) -> Iterator[BinaryIO]:
    """A new file at `path`, removed after an error in the block."""
    try:
        with path.open("wb") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_hash(actual: str, expected: str) -> None:
    """Raises HashMismatchError."""
    if actual != expected:
        message = f"The body's sha256 is {actual[:12]}…, the URL has {expected[:12]}…. Send the bytes again."
        raise HashMismatchError(message)


def compute_file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
