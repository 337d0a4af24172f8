"""Stores raw dumps as they arrived, and removes those that no row needs any more.

They are zstd-compressed and named by the sha256 of the plain bytes. Each belongs to one project and is never shared.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from rollouts.errors import StorageUnavailableError
from rollouts.models import Dump
from rollouts.storage import access
from rollouts.storage.deletion_lock import allow_deletion
from rollouts.storage.key_lock import lock_key
from rollouts.storage.keys import get_raw_dump_key

MIN_FILE_AGE_SECONDS = 60  # an upload of the same bytes may write its row just now


def store_raw_dump(project_id: int, sha256: str, uncompressed_path: Path) -> None:
    """Compresses the file to its key and removes it. If the bytes are already stored, only removes it.

    The caller writes the row next, inside `confirm_raw_dump`. Raises StorageUnavailableError if the storage fails.
    """
    key = get_raw_dump_key(project_id, sha256)
    try:
        # A recent file is not removed, and the caller is about to write a row for these bytes.
        if access.find_file(key) is None or not access.touch_file(key):
            with (
                access.write_file(key) as temporary,
                uncompressed_path.open("rb") as source,
                temporary.open("wb") as out,
            ):
                zstandard.ZstdCompressor(level=1).copy_stream(source, out)
        uncompressed_path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {key}: {error.strerror}.") from error


def is_raw_dump_stored(project_id: int, sha256: str) -> bool:
    """Raises StorageUnavailableError."""
    key = get_raw_dump_key(project_id, sha256)
    try:
        return access.find_file(key) is not None
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot read {key}: {error.strerror}.") from error


@contextmanager
def confirm_raw_dump(project_id: int, sha256: str) -> Iterator[None]:
    """The block writes the row of a dump. Raises StorageUnavailableError if its bytes were removed meanwhile."""
    with lock_key(get_raw_dump_key(project_id, sha256)):
        yield
        if not is_raw_dump_stored(project_id, sha256):
            raise StorageUnavailableError(f"The file {sha256[:12]} was removed at the same time; upload it again.")


def open_raw_dump(project_id: int, sha256: str) -> BinaryIO:
    """Opens the plain bytes of a dump. Raises StorageUnavailableError if they cannot be read."""
    try:
        file = access.fetch_file(get_raw_dump_key(project_id, sha256)).open("rb")
        stream = zstandard.ZstdDecompressor().stream_reader(file, closefd=True)
    except OSError as error:
        raise StorageUnavailableError(f"The bytes of dump {sha256[:12]} cannot be read: {error.strerror}.") from error
    return cast(BinaryIO, stream)


def measure_raw_dumps(project_id: int, hashes: Iterable[str]) -> dict[str, int]:
    """Returns the compressed bytes by hash. Those that are not stored are left out. Raises OSError."""
    keys = {get_raw_dump_key(project_id, sha256): sha256 for sha256 in hashes}
    return {keys[key]: size for key, size in access.measure_files(keys, f"raw/{project_id}/").items()}


def delete_unused_raw_files(project_id: int, hashes: Iterable[str]) -> list[str]:
    """Removes the files that no dump of the project needs. No row refers to them any more.

    Returns the hashes of the files that remain for the hourly cleanup: while a backup runs all, otherwise those that
    were written or used in the last minute, or that the bucket did not remove.
    """
    with allow_deletion() as allowed:
        return [sha256 for sha256 in sorted(set(hashes)) if not allowed or not delete_raw_file(project_id, sha256)]


def delete_raw_file(project_id: int, sha256: str, min_age: float = MIN_FILE_AGE_SECONDS) -> bool:
    """Returns False if the file is too recent. A file that a dump needs stays, and is not reported."""
    key = get_raw_dump_key(project_id, sha256)
    try:
        with lock_key(key):
            if is_needed(project_id, sha256):
                return True
            file = access.find_file(key)
            if file and file.modified_at >= time.time() - min_age:
                return False
            if file:
                access.delete_file(key)
    except OSError:
        return False
    return True


def is_needed(project_id: int, sha256: str) -> bool:
    needed = Dump.objects.filter(run__project=project_id, sha256=sha256, raw_dropped_at=None)
    return bool(needed.exclude(source__startswith=Dump.ARTIFACT_PREFIX).exists())
