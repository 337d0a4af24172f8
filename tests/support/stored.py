"""Stored files for tests that read or damage them, in the data folder or in a bucket."""

import os
import time
from pathlib import Path

from django.conf import settings

from rollouts.storage import (
    delete_file,
    fetch_file,
    get_blob_key,
    get_body_key,
    get_raw_dump_key,
    has_file,
    list_files,
    write_file,
)
from tests.support.bucket_server import make_older


class StoredPath:
    """A stored file, with the methods of a path that tests use."""

    def __init__(self, key: str) -> None:
        self.key, self.name = key, key.rpartition("/")[2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredPath) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def exists(self) -> bool:
        return has_file(self.key)

    def unlink(self) -> None:
        assert self.exists()
        delete_file(self.key)

    def read_bytes(self) -> bytes:
        return fetch_file(self.key).read_bytes()

    def write_bytes(self, data: bytes) -> None:
        if settings.STORAGE_URL:
            delete_file(self.key)  # from the cache too
        with write_file(self.key) as path:
            path.write_bytes(data)

    def set_age(self, seconds: float) -> None:
        set_age(self.key, seconds)


def set_age(key: str, seconds: float) -> None:
    """Moves the time of a file into the past."""
    if settings.STORAGE_URL:
        make_older(settings.STORAGE_URL, key, seconds)
    else:
        os.utime(Path(settings.DATA_DIR) / key, (time.time() - seconds,) * 2)


def body_path(name: str) -> StoredPath:
    return StoredPath(get_body_key(name))


def raw_path(project_id: int, sha256: str) -> StoredPath:
    return StoredPath(get_raw_dump_key(project_id, sha256))


def blob_path(project_id: int, sha256: str) -> StoredPath:
    return StoredPath(get_blob_key(project_id, sha256))


def list_stored(prefix: str) -> list[StoredPath]:
    """Returns the files of a kind, for example "bodies/"."""
    return [StoredPath(file.key) for file in list_files(prefix)]
