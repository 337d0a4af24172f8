"""Where this server's files are: the place of the settings, and during a move the other one.

The row of `StorageLocation` says where they are. A process starts only if the settings agree with it, so that a
forgotten variable never splits the files of a server.
"""

import errno
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import DatabaseError

from rollouts.errors import RolloutError
from rollouts.models import Blob, Dump, Segment, StorageLocation
from rollouts.storage.bucket import BucketError, BucketStore
from rollouts.storage.cache import FileCache
from rollouts.storage.disk import DiskStore
from rollouts.storage.files import get_data_root
from rollouts.storage.store import Store

log = logging.getLogger(__name__)

MOVE_MARKER: Final = "moving-files"  # in the data folder while its files are moved: saves a query at other times
KNOWN_SECONDS: Final = 5.0  # for which a process relies on what it read


class StorageRefusedError(RolloutError):
    """The server cannot use the storage of its settings. The message says why and what to do."""

    code = "storage_refused"


class KnownLocation:
    """The row, as this process knows it. None: the settings are right, and nothing is moved."""

    def __init__(self) -> None:
        self.row: StorageLocation | None = None
        self.root, self.read_at, self.is_ignored = Path(), -KNOWN_SECONDS, False

    def load(self) -> StorageLocation | None:
        root = get_data_root()
        if self.is_ignored or not (settings.STORAGE_URL or (root / MOVE_MARKER).exists()):
            return None
        if root != self.root or time.monotonic() - self.read_at > KNOWN_SECONDS:
            try:
                self.row = StorageLocation.objects.first()
            except DatabaseError:  # what is known is good enough for a moment
                return self.row
            self.root, self.read_at = root, time.monotonic()
        return self.row

    def clear(self) -> None:
        self.read_at = -KNOWN_SECONDS


known_location = KnownLocation()


def get_store() -> Store:
    return open_store(settings.STORAGE_URL)


def get_writable_store() -> Store:
    """Raises BucketError if the files of the server were moved, and this process has the old settings."""
    row = known_location.load()
    if row and settings.STORAGE_URL not in (row.url, row.moving_to):
        message = f"the files were moved to {describe(row.url)}: restart this process with its ROLLOUTDECK_STORAGE"
        raise BucketError(errno.EIO, message)
    return get_store()


def get_other_store() -> Store | None:
    """Returns the second place that may have files, during a move."""
    row = known_location.load()
    places = [row.url, row.moving_to, row.moved_from] if row else []
    others = [place for place in places if place not in (None, settings.STORAGE_URL)]
    return open_store(others[0]) if others else None


def open_store(url: str) -> Store:
    """`url` is "" for the data folder, or `s3://bucket/prefix`."""
    root = get_data_root()
    if url:
        return BucketStore(url, FileCache(root / "cache", settings.CACHE_BYTES))
    return DiskStore(root)


@contextmanager
def use_folder(path: Path) -> Iterator[None]:
    """Lets this process work on the files of another folder, for example of backups, and on nothing else."""
    before = settings.DATA_DIR, settings.STORAGE_URL
    settings.DATA_DIR, settings.STORAGE_URL, known_location.is_ignored = path, "", True
    try:
        yield
    finally:
        settings.DATA_DIR, settings.STORAGE_URL = before
        known_location.is_ignored = False


def load_location() -> StorageLocation:
    """Returns the row. It is created by the first start: files of an older version are in the data folder."""
    # With a key of its own: two processes that start at once get one row, and so one id of the server.
    return StorageLocation.objects.first() or StorageLocation.objects.get_or_create(pk=1, defaults={"url": ""})[0]


def set_location(server: str) -> None:
    """Says that the files are in the place of the settings, and gives the server another id: after a restore."""
    row = StorageLocation.objects.first() or StorageLocation()
    row.server, row.url, row.moving_to, row.moved_from = server, settings.STORAGE_URL, None, None
    row.save()
    known_location.clear()


def check_storage() -> None:
    """Raises StorageRefusedError if the files are elsewhere than the settings say, or the bucket cannot be used."""
    row, configured = load_location(), settings.STORAGE_URL
    is_empty = configured != row.url and not any(model.objects.exists() for model in (Dump, Blob, Segment))
    if configured not in (row.url, row.moving_to) and not is_empty:
        message = (
            f"The files of this server are in {describe(row.url)}, and ROLLOUTDECK_STORAGE names "
            f"{describe(configured)}. Set it to {row.url or 'nothing'}, or move the files: docs/deployment.md says how."
        )
        raise StorageRefusedError(message)
    prepare_place(configured, row.server)
    if is_empty:  # the first start, or one after a wrong setting
        row.url, row.moving_to, row.moved_from = configured, None, None
        row.save()
        known_location.clear()


def prepare_place(url: str, server: str) -> None:
    """Raises StorageRefusedError unless this server can write and delete there, and no other server does."""
    store = open_store(url)
    if isinstance(store, BucketStore):
        try:
            store.try_out()
            owner = store.claim(server)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"ROLLOUTDECK_STORAGE cannot be used: {reason}.\nSee docs/deployment.md, Files in a bucket."
            raise StorageRefusedError(message) from error
        if owner != server:
            message = f"{url} has the files of another server. Choose another prefix, such as {url}-2."
            raise StorageRefusedError(message)


def start_move(target: str) -> StorageLocation:
    """Lets processes write to another place. Raises StorageRefusedError if it cannot be used."""
    row = load_location()
    if row.moving_to is not None and row.moving_to != target:
        raise StorageRefusedError(f"The files are being moved to {describe(row.moving_to)}. Finish that first.")
    if row.moved_from is not None and row.url != target:
        raise StorageRefusedError(f"The last files are being moved to {describe(row.url)}. Finish that first.")
    prepare_place(target, row.server)
    if row.url != target:
        (get_data_root() / MOVE_MARKER).touch()
        row.moving_to = target
        row.save()
    known_location.clear()
    return row


def switch_move(row: StorageLocation) -> None:
    """No process may write to the old place any more. Returns when all of them know it."""
    row.url, row.moving_to, row.moved_from = row.moving_to or "", None, row.url
    row.save()
    known_location.clear()
    time.sleep(2 * KNOWN_SECONDS)


def finish_move(row: StorageLocation) -> None:
    row.moved_from = None
    row.save()
    known_location.clear()
    if not row.url:
        (get_data_root() / MOVE_MARKER).unlink(missing_ok=True)


def probe_bucket() -> str:
    """Returns "ok", or what is wrong, without names: this is shown to anybody."""
    store = get_store()
    if not isinstance(store, BucketStore):
        return "ok"
    try:
        store.read_owner()
    except OSError:
        log.exception("The bucket does not answer.")
        return "the bucket does not answer, see the server's log"
    return "ok"


def describe(url: str) -> str:
    return url or f"the data folder {get_data_root()}"
