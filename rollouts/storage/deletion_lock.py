"""A lock between the removal of stored files and a backup, which needs every file of its database snapshot.

Code that removes stored files does it inside `allow_deletion`. The kernel releases the lock when a process ends. With a
bucket the machines share no folder, and some file systems have no locks: then they share a lock of PostgreSQL as well,
which ends with its connection.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from django.conf import settings
from django.db import connection, connections

from rolloutdeck.lib import try_lock
from rollouts.storage.files import ensure_folder

POLL_SECONDS = 0.1
LOCK_NUMBER: Final = 0x726F6C6D  # any number that no other program of the database uses
TRY_SHARED: Final = "SELECT pg_try_advisory_lock_shared(%s)"
TRY_EXCLUSIVE: Final = "SELECT pg_try_advisory_lock(%s)"


class DeletionLock:
    """`take` returns whether this process has it now."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.shared: Any = None  # the connection that has the lock of PostgreSQL

    def take(self, *, exclusive: bool) -> bool:
        locked = try_lock(self.handle, shared=not exclusive)
        if locked is False:
            return False
        if connection.vendor != "postgresql" or (locked and not settings.STORAGE_URL):
            return True
        if self.shared is None:
            self.shared = connections.create_connection("default")
        with self.shared.cursor() as cursor:
            cursor.execute(TRY_EXCLUSIVE if exclusive else TRY_SHARED, [LOCK_NUMBER])
            return bool(cursor.fetchone()[0])


@contextmanager
def open_lock() -> Iterator[DeletionLock]:
    handle = os.open(ensure_folder("run") / "deletions.lock", os.O_RDWR | os.O_CREAT, 0o600)
    lock = DeletionLock(handle)
    try:
        yield lock
    finally:
        if lock.shared:
            lock.shared.close()
        os.close(handle)


@contextmanager
def allow_deletion() -> Iterator[bool]:
    """Yields False while a backup runs: then nothing may be removed. A backup waits until the block ends."""
    with open_lock() as lock:
        yield lock.take(exclusive=False)


@contextmanager
def forbid_deletion() -> Iterator[None]:
    """Waits until no stored file is being removed, and keeps all files until the block ends."""
    with open_lock() as lock:
        while not lock.take(exclusive=True):
            time.sleep(POLL_SECONDS)
        yield


def skip_during_backup(remove: Callable[[], int]) -> Callable[[], int]:
    """Makes a step of the sweep return 0 at once while a backup runs."""

    @wraps(remove)
    def remove_if_allowed() -> int:
        with allow_deletion() as allowed:
            return remove() if allowed else 0

    return remove_if_allowed
