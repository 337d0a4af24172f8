"""Provides a dump as a file, for formats that are read by position."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.safe_pickle import SafePickleError
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.storage import create_incoming_path

COPY_BYTES = 1 << 20


@contextmanager
def provide_local_file(stream: BinaryIO, context: DumpContext) -> Iterator[Path]:
    """Yields the uncompressed file of the dump if there is one, else a copy on the data volume that is removed after
    the block. The sweep removes the copies of killed workers. Raises OSError."""
    if context.path:
        yield context.path
        return
    path = create_incoming_path()
    try:
        with path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, COPY_BYTES)
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def provide_pickle_file(stream: BinaryIO, context: DumpContext) -> Iterator[Path]:
    """Like `provide_local_file`. Converts SafePickleError to UnreadableDumpError."""
    with provide_local_file(stream, context) as path:
        try:
            yield path
        except SafePickleError as error:
            raise UnreadableDumpError(f"{context.filename or 'The file'} cannot be read: {error}.") from error
