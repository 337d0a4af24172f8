"""Parts of uploads that are not complete yet.

They are one growing file below incoming/parts/. With a bucket each part is an object as well, below `parts/{name}/` and
named by its first byte, so that the next part may reach another machine. A part that two machines receive at once is
stored by one of them (a conditional write). The hash is checked when the upload is complete.
"""

import time
from collections.abc import Iterator
from typing import BinaryIO, Final

from rollouts.storage.bucket import BucketStore
from rollouts.storage.files import ensure_parts_folder
from rollouts.storage.location import get_store
from rollouts.storage.store import StoredFile

PREFIX: Final = "parts/"
PART_LIFETIME_SECONDS: Final = 24 * 3600.0  # an unfinished upload is removed after this


def share_part(name: str, file: BinaryIO, start: int) -> None:
    """Stores the bytes of an upload from `start` on for other machines. On a disk it does nothing. Raises OSError."""
    store = get_store()
    if isinstance(store, BucketStore):
        file.seek(start)
        store.create(f"{PREFIX}{name}/{start:016}", file.read())


def append_shared_parts(name: str, file: BinaryIO) -> None:
    """Appends what other machines have received. The caller has locked the file. Raises OSError."""
    store = get_store()
    if isinstance(store, BucketStore):
        size = file.seek(0, 2)
        for part in iterate_next_parts(store, name, size):
            file.write(store.read(part.key, size - get_start(part)))
            size = get_start(part) + part.bytes
        file.flush()


def iterate_next_parts(store: BucketStore, name: str, size: int) -> Iterator[StoredFile]:
    """Yields the parts that follow the first `size` bytes without a gap."""
    for part in sorted(store.list_files(f"{PREFIX}{name}/"), key=get_start):
        if get_start(part) <= size < get_start(part) + part.bytes:
            yield part
            size = get_start(part) + part.bytes


def get_start(part: StoredFile) -> int:
    return int(part.key.rpartition("/")[2])


def has_shared_parts() -> bool:
    """Whether parts may have reached another machine."""
    return isinstance(get_store(), BucketStore)


def count_upload_bytes(name: str) -> int:
    """Returns how many bytes of an upload have arrived, on any machine. Raises OSError."""
    try:
        size = (ensure_parts_folder() / name).stat().st_size
    except FileNotFoundError:
        size = 0
    store = get_store()
    if isinstance(store, BucketStore):
        for part in iterate_next_parts(store, name, size):
            size = get_start(part) + part.bytes
    return size


def delete_shared_parts(name: str) -> None:
    """Deletes the parts of an upload that is complete or useless. If that fails, the clean-up does it."""
    store = get_store()
    if isinstance(store, BucketStore):
        try:
            store.delete_all(f"{PREFIX}{name}/")
        except OSError:
            pass


def delete_stale_shared_parts() -> int:
    """Deletes the parts of uploads without a new part for a day. Returns their number. Raises OSError."""
    store = get_store()
    if not isinstance(store, BucketStore):
        return 0
    newest: dict[str, float] = {}
    for file in store.list_files(PREFIX):
        name = file.key.split("/")[1]
        newest[name] = max(newest.get(name, 0.0), file.modified_at)
    stale = [name for name, modified_at in newest.items() if modified_at < time.time() - PART_LIFETIME_SECONDS]
    for name in stale:
        store.delete_all(f"{PREFIX}{name}/")
    return len(stale)


def list_shared_uploads() -> list[str]:
    """Returns the names of the uploads of which the bucket has parts. Raises OSError."""
    store = get_store()
    return store.list_folders(PREFIX) if isinstance(store, BucketStore) else []
