"""Where bytes live: raw dumps as they arrived, and the Parquet bodies that indexing derives from them.

Raw bytes are kept zstd-compressed under the sha256 of the plain bytes, per project and never shared across projects.
Everything is written aside and renamed, so a reader sees whole files only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast
from uuid import uuid4

import zstandard
from django.conf import settings

from rollouts.errors import StorageUnavailableError


def get_data_root() -> Path:
    return Path(settings.DATA_DIR)


def create_incoming_path() -> Path:
    """A new path on the data volume for bytes that are still arriving."""
    folder = get_data_root() / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / uuid4().hex


def ensure_parts_folder() -> Path:
    """Where bodies that travel in parts are gathered."""
    folder = get_data_root() / "incoming" / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def get_raw_dump_path(project_id: int, sha256: str) -> Path:
    return get_data_root() / "raw" / str(project_id) / sha256[:2] / f"{sha256}.zst"


def store_raw_dump(project_id: int, sha256: str, plain: Path) -> None:
    """Compresses `plain` into its place and removes it; does nothing but remove it when the bytes are there already.

    Raises StorageUnavailable when the disk refuses.
    """
    target = get_raw_dump_path(project_id, sha256)
    try:
        if target.exists():
            os.utime(target)  # the purge leaves young files alone: a row for these bytes is about to be written
        else:
            with write_atomically(target) as aside, plain.open("rb") as source, aside.open("wb") as out:
                zstandard.ZstdCompressor(level=1).copy_stream(source, out)
        plain.unlink(missing_ok=True)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {target.parent}: {error.strerror}.") from error


def open_raw_dump(project_id: int, sha256: str) -> BinaryIO:
    """The plain bytes, as a stream. Raises StorageUnavailable when they are not there."""
    try:
        stream = zstandard.ZstdDecompressor().stream_reader(
            get_raw_dump_path(project_id, sha256).open("rb"), closefd=True
        )
    except OSError as error:
        raise StorageUnavailableError(f"The bytes of dump {sha256[:12]} cannot be read: {error.strerror}.") from error
    return cast(BinaryIO, stream)


def get_body_file_path(name: str) -> Path:
    """A Parquet file of sample bodies; `name` as in `Segment.path`."""
    return get_data_root() / "bodies" / name


def retire_body_file(path: Path) -> None:
    """For a body file that no row names any more: the sweep removes it an hour from now, who reads it can go on."""
    with suppress(FileNotFoundError):
        os.utime(path)


@contextmanager
def delete_on_failure(path: Path) -> Iterator[None]:
    """Removes the file when the block fails. To be entered within the transaction that names the file: whatever fails
    behind that may have come after the commit, and an orphan is better than a row without its file. The sweep removes
    it, as it does what a killed worker leaves."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextmanager
def write_atomically(target: Path) -> Iterator[Path]:
    """Yields a path beside `target` to write to; renames it into place if the block ends well, else removes it.

    What was renamed survives a power cut: its bytes, its name, and the folders that were made for it.
    """
    made = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    try:
        yield aside
        fsync_path(aside)
        aside.replace(target)
        for path in (target, *made):
            fsync_path(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    """Makes a file's bytes or a folder's names durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def count_free_bytes() -> int:
    """Room left on the data volume."""
    get_data_root().mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(get_data_root()).free
