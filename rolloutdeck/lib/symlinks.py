"""Which symlinks are safe to follow.

A watch over a shared file system may have more rights than the user who wrote a link. So a link is followed only if
its owner is root, this user, or the owner of the target (like Linux with `fs.protected_symlinks` and Apache with
`SymLinksIfOwnerMatch`).
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def is_safe_to_follow(path: Path) -> bool:
    """Whether `path` exists and is no link, or a link of root, this user or the owner of its target."""
    try:
        return read_safe_stat(path) is not None
    except OSError:
        return False


def read_safe_stat(path: Path) -> os.stat_result | None:
    """Returns the stat of what `path` leads to; None if it is not safe to follow. Raises OSError.

    A caller that opens `path` later compares with this stat: the path may have become a link meanwhile.
    """
    link, target = path.lstat(), path.stat()
    is_link = stat.S_ISLNK(link.st_mode)
    is_safe = link.st_uid in (0, os.getuid(), target.st_uid) if is_link else os.path.samestat(link, target)
    return target if is_safe else None


def find_folder_owner(folder: Path) -> int | None:
    """Returns the user id of the folder's owner; None if it does not exist or is a link."""
    with suppress(OSError):
        stat_result = folder.lstat()
        return stat_result.st_uid if stat.S_ISDIR(stat_result.st_mode) else None
    return None


def detect_created_owner(folder: Path) -> int:
    """Returns the owner of new files in a folder: a shared file system may map root to another user."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as created:
            return Path(created).lstat().st_uid
    except OSError:
        return os.geteuid()
