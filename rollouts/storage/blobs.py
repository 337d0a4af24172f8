"""Stores the bytes of artifacts: uncompressed files below blobs/{project}/, named by their sha256.

A trainer downloads the same bytes that were dumped. Uploads are received on the data volume, so storing one on a disk
is a rename. Each file belongs to one project and is never shared.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from django.db import transaction

from rollouts.errors import StorageUnavailableError
from rollouts.models import Blob
from rollouts.storage import access, files
from rollouts.storage.keys import get_blob_key
from rollouts.storage.parts import count_upload_bytes


def get_blob_upload_name(project_id: int, sha256: str, total: int) -> str:
    """Returns the name of an incomplete upload of `total` bytes."""
    return f"blob-{project_id}-{sha256}-{total}"


def get_blob_part_path(project_id: int, sha256: str, total: int) -> Path:
    """Returns the path that collects the parts of an incomplete upload of `total` bytes."""
    return files.ensure_parts_folder() / get_blob_upload_name(project_id, sha256, total)


def store_blob(project_id: int, sha256: str, uncompressed_path: Path, size: int) -> Blob:
    """Moves `uncompressed_path` to its key and writes the row. Returns the row. A second call has no effect.

    The caller has checked the hash and `size` in bytes. Raises StorageUnavailableError if the storage fails, or a purge
    removed the file at the same time.
    """
    key = get_blob_key(project_id, sha256)
    try:
        stored = access.find_file(key)
        # The sweep skips recent files; the row for these bytes is written below.
        if stored and stored.bytes == size and access.touch_file(key):
            uncompressed_path.unlink(missing_ok=True)
        else:
            access.put_file(uncompressed_path, key)
        with transaction.atomic():  # waits for a concurrent purge of this blob, which locks its row
            rows = Blob.objects.select_for_update()
            blob = rows.get_or_create(project_id=project_id, sha256=sha256, defaults={"bytes": size})[0]
            if access.find_file(key) is None:
                message = f"The file {sha256[:12]} was removed at the same time; upload it again."
                raise StorageUnavailableError(message)
    except OSError as error:
        raise StorageUnavailableError(f"The server cannot write to {key}: {error.strerror}.") from error
    return blob


def fetch_blob(project_id: int, sha256: str) -> Path:
    """Returns the path of the bytes on this machine. Raises FileNotFoundError and OSError."""
    return access.fetch_file(get_blob_key(project_id, sha256))


def has_blob_file(project_id: int, sha256: str) -> bool:
    """Raises OSError."""
    return access.find_file(get_blob_key(project_id, sha256)) is not None


def open_blob(project_id: int, sha256: str) -> BinaryIO:
    """Opens the bytes of a blob. Raises StorageUnavailableError if they cannot be read."""
    try:
        return fetch_blob(project_id, sha256).open("rb")
    except OSError as error:
        raise StorageUnavailableError(f"The bytes of file {sha256[:12]} cannot be read: {error.strerror}.") from error


def count_part_bytes(project_id: int, sha256: str, total: int) -> int:
    """Returns how many bytes of an upload in parts have arrived. Raises OSError."""
    return count_upload_bytes(get_blob_upload_name(project_id, sha256, total))


def delete_unused_blobs(blobs: Iterable[Blob]) -> int:
    """Deletes the blobs that no artifact uses, the row first. Returns how many.

    The file is deleted while the row is still locked, so that `store_blob` of the same bytes runs before or after both
    deletions. If the storage does not answer, the row remains for the next sweep.
    """
    deleted = 0
    for blob in blobs:
        try:
            with transaction.atomic():
                if Blob.objects.filter(pk=blob.pk, artifacts=None).delete()[0]:
                    access.delete_file(get_blob_key(blob.project_id, blob.sha256))
                    deleted += 1
        except OSError:
            continue
    return deleted
