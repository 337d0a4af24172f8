"""A dump whose format is read by position, not from its beginning to its end, as a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle import SafePickleError
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.storage import create_incoming_path

CHUNK = 1 << 20


@contextmanager
def provide_local_file(stream: BinaryIO, context: DumpContext) -> Iterator[Path]:
    """The file itself where it lies plain, else a copy on the data volume that is gone after the block. Raises OSError;
    what a killed worker leaves there the sweep removes."""
    if context.path:
        yield context.path
        return
    path = create_incoming_path()
    try:
        with path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, CHUNK)
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def provide_pickle_file(stream: BinaryIO, context: DumpContext) -> Iterator[Path]:
    """The same for what is read through `rolloutdeck.safe_pickle`. Raises UnreadableDumpError for what that refuses."""
    with provide_local_file(stream, context) as path:
        try:
            yield path
        except SafePickleError as error:
            raise UnreadableDumpError(f"{context.filename or 'The file'} cannot be read: {error}.") from error
