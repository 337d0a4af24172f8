"""The stored files, wherever they are: in the data folder, in a bucket, or, during a move, in both.

During a move new files go to the place of the settings, and files that it lacks are read from the other place.
"""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from rollouts.storage.bucket import BucketStore
from rollouts.storage.cache import UNUSED_CHECK_SECONDS
from rollouts.storage.keys import get_body_key
from rollouts.storage.location import get_other_store, get_store, get_writable_store
from rollouts.storage.store import Store, StoredFile


def write_file(key: str, *, is_derived: bool = False) -> AbstractContextManager[Path]:
    """Yields a path for the bytes. They are stored under the key if the block succeeds and has written them; then they
    survive a power cut, unless `is_derived`. Raises OSError."""
    return get_writable_store().write(key, is_derived=is_derived)


def put_file(path: Path, key: str) -> None:
    """Moves a file of the data volume to its key, durably. Raises OSError."""
    get_writable_store().put(path, key)


def fetch_file(key: str) -> Path:
    """Returns the path of the file on this machine. Raises FileNotFoundError and OSError."""
    try:
        return get_store().fetch(key)
    except FileNotFoundError:
        if other := get_other_store():
            return other.fetch(key)
        raise


def fetch_body_file(name: str) -> Path:
    """Returns the path of a Parquet file of sample bodies. `name` is `Segment.path`.

    Raises FileNotFoundError and OSError.
    """
    return fetch_file(get_body_key(name))


def checkout_file(key: str) -> AbstractContextManager[Path]:
    """Yields the path of the bytes as they are stored, without a cache. Raises FileNotFoundError and OSError."""
    return find_holder(key).checkout(key)


def find_holder(key: str) -> Store:
    """Returns the place that has the file, by default the place of the settings."""
    store, other = get_store(), get_other_store()
    return other if other and store.find(key) is None else store


def find_file(key: str) -> StoredFile | None:
    """Raises OSError."""
    found = get_store().find(key)
    if found is None and (other := get_other_store()):
        return other.find(key)
    return found


def has_file(key: str) -> bool:
    """Raises OSError."""
    return find_file(key) is not None


def measure_files(keys: Collection[str], prefix: str) -> dict[str, int]:
    """Returns the sizes of the existing ones of these files, which all have the prefix. Raises OSError."""
    sizes = get_store().measure(keys, prefix)
    if len(sizes) < len(keys) and (other := get_other_store()):
        sizes |= other.measure([key for key in keys if key not in sizes], prefix)
    return sizes


def touch_file(key: str) -> bool:
    """Makes a file recent for the sweep. Returns False if that is not possible: then store its bytes again."""
    return find_holder(key).touch(key)


def copy_file(source: str, target: str) -> None:
    """Raises FileNotFoundError and OSError."""
    store, holder = get_writable_store(), find_holder(source)
    if holder.url == store.url:
        return store.copy(source, target)
    with holder.checkout(source) as path, store.write(target) as copy:
        copy.write_bytes(path.read_bytes())


def delete_file(key: str) -> None:
    """Raises OSError."""
    for store in get_stores():
        store.delete(key)


def delete_files(prefix: str) -> None:
    """Deletes all files with the prefix, which ends in a slash. Raises OSError."""
    for store in get_stores():
        store.delete_all(prefix)


def list_files(prefix: str = "") -> Iterator[StoredFile]:
    """Yields the files whose keys have the prefix, which ends in a slash. "" is everything. Raises OSError."""
    store, other = get_store(), get_other_store()
    if other is None:
        yield from store.list_files(prefix)
        return
    known = set()
    for file in store.list_files(prefix):
        known.add(file.key)
        yield file
    yield from (file for file in other.list_files(prefix) if file.key not in known)


def list_folders(prefix: str) -> set[str]:
    """Returns the next parts of the keys with the prefix, which ends in a slash. Raises OSError."""
    return {name for store in get_stores() for name in store.list_folders(prefix)}


def get_stores() -> list[Store]:
    other = get_other_store()
    return [get_store(), other] if other else [get_store()]


@contextmanager
def delete_on_failure(key: str) -> Iterator[None]:
    """Removes the file if the block fails.

    Use it inside the transaction that names the file. A failure after the block may happen after the commit, and an
    orphaned file is better than a row without its file. The sweep removes orphans, also those of killed workers.
    """
    try:
        yield
    except BaseException:
        delete_orphan(key)
        raise


def remove_unused_copies() -> None:
    """Removes the copies of a bucket's files that nobody used for a day, at most once an hour. Call it now and then: a
    machine that adds no files to its cache does not do so otherwise."""
    store = get_store()
    if isinstance(store, BucketStore):
        with suppress(OSError):  # the next call tries again
            store.cache.remove_unused_if_due(UNUSED_CHECK_SECONDS)


def delete_orphan(key: str) -> None:
    """Deletes a file that no row names. If that fails, the sweep does it later."""
    try:
        delete_file(key)
    except OSError:
        pass
