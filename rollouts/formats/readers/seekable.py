"""A dump whose format is read by position, not from its beginning to its end, as a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle.errors import Refused
from rollouts.errors import UnreadableDump
from rollouts.formats.base import Told
from rollouts.storage import files

CHUNK = 1 << 20


@contextmanager
def at_hand(stream: BinaryIO, told: Told) -> Iterator[Path]:
    """The file itself where it lies plain, else a copy on the data volume that is gone after the block. Raises OSError;
    what a killed worker leaves there the sweep removes."""
    if told.path:
        yield told.path
        return
    path = files.incoming()
    try:
        with path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, CHUNK)
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def pickled(stream: BinaryIO, told: Told) -> Iterator[Path]:
    """The same for what is read through `rolloutdeck.safe_pickle`. Raises UnreadableDump for what that refuses."""
    with at_hand(stream, told) as path:
        try:
            yield path
        except Refused as error:
            raise UnreadableDump(f"{told.filename or 'The file'} cannot be read: {error}.") from error
