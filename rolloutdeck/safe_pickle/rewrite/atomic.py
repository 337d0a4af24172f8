"""Writes a batch that is complete and safe to load, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.safety_report import check_file_safety


@contextmanager
def open_checked_output(target: Path) -> Iterator[BinaryIO]:
    """Yields a file to write. If the block succeeds and the file is safe to load, it replaces `target`.

    Raises OSError, and SafePickleError if the file may not be loaded. `target` is then unchanged.
    """
    partial = target.with_name(f".{target.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        report = check_file_safety(partial)
        if not report.loadable:
            raise SafePickleError(f"what was written could not be loaded: {'; '.join(report.reasons)}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
