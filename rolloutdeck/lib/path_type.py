"""What a path is, with or without an exception for a folder that can't be read or a file system that fails."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal

PathType = Literal["file", "folder", "other", ""]


def get_path_type(path: Path) -> PathType:
    """Returns what a path is, following links; "" if there is nothing or it can't be read.

    `Path.exists()`, `is_file()` and `is_dir()` raise an error in the second case.
    """
    try:
        return read_path_type(path)
    except OSError:
        return ""


def read_path_type(path: Path) -> PathType:
    """Like `get_path_type`. Raises OSError if the path can't be read."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
