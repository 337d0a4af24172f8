"""Whose links are followed. A watch over a shared file system may read what one person's link cannot: what others wrote
for it to take. So a link counts only where whoever made it could have shown the file itself (as Linux does with
`fs.protected_symlinks`, and Apache with `SymLinksIfOwnerMatch`)."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def is_safe_to_follow(path: Path) -> bool:
    """Whether this is no link, or one of root, of this user, or of the owner of what it leads to. False where nothing
    is there."""
    try:
        link = path.lstat()
        return not stat.S_ISLNK(link.st_mode) or link.st_uid in (0, os.getuid(), path.stat().st_uid)
    except OSError:
        return False


def find_folder_owner(folder: Path) -> int | None:
    """Whose folder this is; None where there is none, and for a link."""
    with suppress(OSError):
        found = folder.lstat()
        return found.st_uid if stat.S_ISDIR(found.st_mode) else None
    return None


def detect_created_owner(folder: Path) -> int:
    """Whose what this process makes in a folder is: a shared file system may call root somebody else."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as made:
            return Path(made).lstat().st_uid
    except OSError:
        return os.geteuid()
