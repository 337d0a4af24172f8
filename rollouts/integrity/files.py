"""Verifies the bytes of stored files, at a limited rate."""

import hashlib
import time
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from rollouts.integrity.references import FileReference
from rollouts.storage import BucketError, checkout_file

READ_BYTES = 1 << 20


class RateLimit:
    """Limits the bytes per second that are read. None is no limit."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self.bytes_per_second = bytes_per_second
        self.started, self.count = time.monotonic(), 0

    def add(self, count: int) -> None:
        """Waits until `count` more bytes are within the limit."""
        self.count += count
        if self.bytes_per_second:
            delay = self.count / self.bytes_per_second - (time.monotonic() - self.started)
            if delay > 0:
                time.sleep(delay)


def find_damage(reference: FileReference, rows: int | None, limit: RateLimit) -> str:
    """Reads a file and returns what is wrong with its bytes; "" if nothing is. `rows` are those of a body file.

    Raises FileNotFoundError, and BucketError if the bucket does not answer: that is no damage.
    """
    try:
        with checkout_file(reference.name) as path:
            if reference.kind == "bodies":
                return find_body_damage(path, rows, limit)
            with path.open("rb") as file:
                if reference.kind != "raw":
                    return compare_hash(file, file, reference.sha256, limit)
                with zstandard.ZstdDecompressor().stream_reader(file) as plain:
                    return compare_hash(plain, file, reference.sha256, limit)
    except (FileNotFoundError, BucketError):
        raise
    except (OSError, pa.ArrowException, zstandard.ZstdError) as error:
        return f"it cannot be read: {str(error).splitlines()[0]}"


def compare_hash(stream: object, stored: BinaryIO, expected: str, limit: RateLimit) -> str:
    """`stream` has the plain bytes of `stored`, whose own bytes are counted."""
    digest, position = hashlib.sha256(), 0
    while piece := stream.read(READ_BYTES):  # type: ignore[attr-defined]
        digest.update(piece)
        limit.add(stored.tell() - position)
        position = stored.tell()
    return "" if digest.hexdigest() == expected else "its bytes do not have the hash of its name"


def find_body_damage(path: Path, rows: int | None, limit: RateLimit) -> str:
    """Decodes every page. Pages have checksums in files that this version wrote."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = file.metadata.num_row_groups
        size = path.stat().st_size
        for group in range(groups):
            file.read_row_group(group)
            limit.add(size // max(1, groups))
        if rows is not None and file.metadata.num_rows != rows:
            return f"it has {file.metadata.num_rows} rows, its row in the database says {rows}"
    return ""
