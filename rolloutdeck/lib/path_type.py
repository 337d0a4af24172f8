"""What a path is, without an exception for a folder that can't be read or a file system that does not answer."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal


def get_path_type(path: Path) -> Literal["file", "folder", "other", ""]:
    """Returns what a path is, following links; "" if there is nothing or it can't be read.

    `Path.exists()`, `is_file()` and `is_dir()` raise an error in the second case.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a null character
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
