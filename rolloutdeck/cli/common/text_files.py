"""Text files that a command reads and writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from rolloutdeck.errors import UsageError


def read_text_lines(file: Iterable[str], path: Path) -> Iterator[str]:
    """Yields the lines of a file that was opened as UTF-8. Raises UsageError if it is no text in UTF-8."""
    try:
        yield from file
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8.") from None


@contextlib.contextmanager
def open_text_replacement(path: Path, *, is_input: bool = False) -> Iterator[IO[str]]:
    """Opens a text file whose content is that of `path` when the block ends without an error.

    `is_input`: the block reads `path`. Then `path` is only replaced as a whole, since a copy that fails would lose its
    rows. Otherwise it is overwritten if it can't be replaced: it is a mount, or its folder is not writable.
    """
    if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/null, can't be replaced
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    final = path.resolve()  # a link stays a link
    temporary = _create_temporary_file(final, may_copy=not is_input)
    try:
        with temporary.open("w", encoding="utf-8") as file:  # Windows does not rename an open file
            yield file
        if final.exists():
            temporary.chmod(final.stat().st_mode & 0o777)
        try:
            temporary.replace(final)
        except OSError:
            if is_input:
                raise
            shutil.copyfile(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def _create_temporary_file(final: Path, *, may_copy: bool) -> Path:
    """Creates a file in the folder of `final`, or elsewhere if only `final` itself can be written."""
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        temporary.open("x").close()
    except OSError:
        if not may_copy or not os.access(final, os.W_OK):
            raise
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        return Path(name)
    return temporary
