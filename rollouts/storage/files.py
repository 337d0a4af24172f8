"""Stores raw dumps as they arrived, and the Parquet body files that indexing derives from them.

Raw dumps are zstd-compressed and named by the sha256 of the plain bytes. Each belongs to one project and is never
shared. Every file is written under a temporary name and renamed, so a reader sees complete files only.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, cast
from uuid import uuid4

import zstandard
from django.conf import settings

from rollouts.errors import StorageUnavailableError
from rollouts.telemetry import STORAGE_SECONDS


def get_data_root() -> Path:
    return Path(settings.DATA_DIR)


def ensure_folder(*names: str) -> Path:
    """Returns a folder below the data root, and creates it."""
    folder = get_data_root().joinpath(*names)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def create_incoming_path() -> Path:
    """Returns a new path on the data volume for an upload in progress."""
    return ensure_folder("incoming") / uuid4().hex


def ensure_parts_folder() -> Path:
    """Returns the folder for uploads in parts, and creates it."""
    return ensure_folder("incoming", "parts")


def get_raw_dump_path(project_id: int, sha256: str) -> Path:
    return get_data_root() / "raw" / str(project_id) / sha256[:2] / f"{sha256}.zst"


def store_raw_dump(project_id: int, sha256: str, uncompressed_path: Path) -> None:
    """Compresses the file to its final path and removes it. If the bytes are already stored, only removes it.

    Raises StorageUnavailableError if the disk fails.
    """
    target = get_raw_dump_path(project_id, sha256)
    try:
        if target.exists():
            os.utime(target)  # the purge skips recent files; the caller is about to write a row for these bytes
        else:
            with (
                write_atomically(target) as temporary,
                uncompressed_path.open("rb") as source,
                temporary.open("wb") as out,
            ):
                zstandard.ZstdCompressor(level=1).copy_stream(source, out)
        uncompressed_path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {target.parent}: {error.strerror}.") from error


def open_raw_dump(project_id: int, sha256: str) -> BinaryIO:
    """Opens the plain bytes of a dump. Raises StorageUnavailableError if they cannot be read."""
    try:
        stream = zstandard.ZstdDecompressor().stream_reader(
            get_raw_dump_path(project_id, sha256).open("rb"), closefd=True
        )
    except OSError as error:
        raise StorageUnavailableError(f"The bytes of dump {sha256[:12]} cannot be read: {error.strerror}.") from error
    return cast(BinaryIO, stream)


def get_body_file_path(name: str) -> Path:
    """Returns the path of a Parquet file of sample bodies. `name` is `Segment.path`."""
    return get_data_root() / "bodies" / name


def retire_body_file(path: Path) -> None:
    """Marks a body file that no row names as recent. The sweep removes it after an hour, so readers can finish."""
    with suppress(FileNotFoundError):
        os.utime(path)


@contextmanager
def delete_on_failure(path: Path) -> Iterator[None]:
    """Removes the file if the block fails.

    Use it inside the transaction that names the file. A failure after the block may happen after the commit, and an
    orphaned file is better than a row without its file. The sweep removes orphans, also those of killed workers.
    """
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def write_atomically(target: Path) -> Iterator[Path]:
    """Yields a temporary path next to `target`. Renames it to `target` if the block succeeds, else removes it.

    After the block, the file survives a power cut.
    """
    kind = target.relative_to(get_data_root()).parts[0] if target.is_relative_to(get_data_root()) else "other"
    started, new_folders = perf_counter(), create_parents(target)
    temporary = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    try:
        yield temporary
        rename_durably(temporary, target, new_folders)
        STORAGE_SECONDS.labels(kind).observe(perf_counter() - started)
    finally:
        temporary.unlink(missing_ok=True)


def create_parents(target: Path) -> list[Path]:
    """Creates the parent folders of a file. Returns the new ones."""
    new_folders = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    return new_folders


def rename_durably(path: Path, target: Path, new_folders: Iterable[Path]) -> None:
    """Renames a file so that its bytes, its name and the new folders survive a power cut."""
    fsync_path(path)
    path.replace(target)
    for new_path in (target, *new_folders):
        fsync_path(new_path.parent)


def fsync_path(path: Path) -> None:
    """Writes a file's bytes or a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


RESERVED_BYTES = 256 << 20  # of the data volume, which uploads leave free


def count_free_bytes() -> int:
    """Returns the free bytes on the data volume."""
    return shutil.disk_usage(ensure_folder()).free


MIN_DATABASE_BYTES = 1 << 20  # with less free space, an I/O error of SQLite means a full disk


def is_disk_full(error: BaseException) -> bool:
    """Whether the file system, SQLite or PostgreSQL reports a full disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError):
        return cause.errno in (errno.ENOSPC, errno.EDQUOT)
    name = getattr(cause, "sqlite_errorname", "")
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")):  # of the log or its index next to the database
        return count_free_bytes() < MIN_DATABASE_BYTES
    return name == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == "53100"
