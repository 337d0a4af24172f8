"""A lock between the removal of stored files and a backup, which needs every file of its database snapshot.

Code that removes stored files does it inside `allow_deletion`. The kernel releases the lock when a process ends.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from rollouts.storage.files import ensure_folder

POLL_SECONDS = 0.1


@contextmanager
def open_lock() -> Iterator[int]:
    handle = os.open(ensure_folder("run") / "deletions.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def allow_deletion() -> Iterator[bool]:
    """Yields False while a backup runs: then nothing may be removed. A backup waits until the block ends."""
    with open_lock() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            allowed = True
        except OSError:
            allowed = False
        yield allowed


@contextmanager
def forbid_deletion() -> Iterator[None]:
    """Waits until no stored file is being removed, and keeps all files until the block ends."""
    with open_lock() as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(POLL_SECONDS)
        yield


def skip_during_backup(remove: Callable[[], int]) -> Callable[[], int]:
    """Makes a step of the sweep return 0 at once while a backup runs."""

    @wraps(remove)
    def remove_if_allowed() -> int:
        with allow_deletion() as allowed:
            return remove() if allowed else 0

    return remove_if_allowed
