"""A lock of an open file between processes, flock(2). It ends with its process."""

from __future__ import annotations

import fcntl


def try_lock(handle: int, *, shared: bool = False) -> bool | None:
    """Locks an open file without waiting. Returns False if another process has the lock, and None if the file system
    has no locks, as some network file systems: nothing is locked then."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # SMB says EACCES
        return False
    except OSError:
        return None
    return True
