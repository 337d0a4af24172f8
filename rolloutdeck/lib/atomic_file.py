"""Replaces files in one step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_replacement(path: Path, *, mode: int = 0o666, is_synced: bool = False) -> Iterator[BinaryIO]:
    """Opens a new file that replaces `path` when the block ends. With `is_synced` it survives a power cut.

    After an error the old file stays, and no other one. `mode`: the permissions, before the umask. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
