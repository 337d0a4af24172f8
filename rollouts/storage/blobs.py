"""Bytes of artifacts: plain files below blobs/{project}/, named by their sha256; a trainer gets what was dumped.

They come on the data volume already, so keeping one is a rename. Per project and never shared across projects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from django.db import transaction

from rollouts.errors import StorageUnavailableError
from rollouts.models import Blob
from rollouts.storage import files


def get_blob_path(project_id: int, sha256: str) -> Path:
    return files.get_data_root() / "blobs" / str(project_id) / sha256[:2] / sha256


def get_blob_part_path(project_id: int, sha256: str, total: int) -> Path:
    """Where the parts of one that is still arriving are gathered."""
    return files.ensure_parts_folder() / f"blob-{project_id}-{sha256}-{total}"


def store_blob(project_id: int, sha256: str, plain: Path, size: int) -> Blob:
    """Moves `plain` into its place and writes the row; twice is once. The caller has checked hash and `size` in bytes.

    Raises StorageUnavailable when the disk refuses, or a purge took the file meanwhile.
    """
    target = get_blob_path(project_id, sha256)
    try:
        if target.exists() and target.stat().st_size == size:
            os.utime(target)  # the sweep leaves young files alone: a row for these bytes is about to be written
            plain.unlink(missing_ok=True)
        else:
            place(plain, target)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {target.parent}: {error.strerror}.") from error
    with transaction.atomic():  # a purge of this blob that is under way has ended when its row is ours
        rows = Blob.objects.select_for_update()
        blob = rows.get_or_create(project_id=project_id, sha256=sha256, defaults={"bytes": size})[0]
        if not target.exists():
            raise StorageUnavailableError(f"The bytes of file {sha256[:12]} were removed meanwhile; send them again.")
    return blob


def place(plain: Path, target: Path) -> None:
    """A rename that survives a power cut."""
    made = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    files.fsync_path(plain)
    plain.replace(target)
    for written in (target, *made):
        files.fsync_path(written.parent)


def open_blob(project_id: int, sha256: str) -> BinaryIO:
    """The plain bytes. Raises StorageUnavailable when they are not there."""
    try:
        return get_blob_path(project_id, sha256).open("rb")
    except OSError as error:
        raise StorageUnavailableError(f"The bytes of file {sha256[:12]} cannot be read: {error.strerror}.") from error


def count_part_bytes(project_id: int, sha256: str, total: int) -> int:
    """Bytes so far of one that travels in parts."""
    try:
        return get_blob_part_path(project_id, sha256, total).stat().st_size
    except FileNotFoundError:
        return 0


def delete_unused_blobs(blobs: Iterable[Blob]) -> int:
    """Removes those that no artifact names, row first; returns how many. The file goes while the row is still locked:
    who keeps the same bytes anew, see `keep`, comes before both or after."""
    gone = 0
    for blob in blobs:
        with transaction.atomic():
            if Blob.objects.filter(pk=blob.pk, artifacts=None).delete()[0]:
                get_blob_path(blob.project_id, blob.sha256).unlink(missing_ok=True)
                gone += 1
    return gone
