"""A batch that we write is there as a whole and may be loaded, or it is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.verdict import check_file_safety


@contextmanager
def open_checked_output(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `target` when the block has ended well. Raises OSError, and
    SafePickleError where what was written may not be loaded; `target` is then what it was before."""
    aside = target.with_name(f".{target.name}.part")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        verdict = check_file_safety(aside)
        if not verdict.loadable:
            raise SafePickleError(f"what was written could not be loaded: {'; '.join(verdict.reasons)}")
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
