"""The data folder: its free space, uploads in progress, and what makes a file survive a power cut."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from django.conf import settings


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


def is_file_lost(error: BaseException | None) -> bool:
    """Whether the error says that a stored file is missing or damaged, and not that the disk or the bucket does not
    answer. Arrow reports damaged content as an OSError without a number, or as an error of its own."""
    if isinstance(error, OSError):
        return error.errno is None or isinstance(error, FileNotFoundError)
    return isinstance(error, pa.ArrowException) and not isinstance(error, MemoryError)
