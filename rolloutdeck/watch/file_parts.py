"""The parts in which dump files are sent, and the parts of a finished file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rolloutdeck.watch.file_endings import hash_open_file, is_complete_file, read_complete_lines, read_last_line
from rolloutdeck.watch.types import DumpFile

Stamp = tuple[int, int, int]  # size, mtime in ns, inode


@dataclass(frozen=True)
class FilePart:
    """Bytes of a file to send: the full file, or complete lines from `offset` on.

    Without `body` the file is streamed. `ends` are the digests of a growing file up to the end of these lines, see
    `digest_file_ends`.
    """

    file: DumpFile
    attempt: str
    sha256: str
    size: int
    stamp: Stamp
    body: bytes | None = None
    offset: int | None = None
    generation: int = 0
    last_step: int | None = None
    ends: tuple[str, str] = ("", "")

    def query(self) -> dict[str, object]:
        """Returns the upload's query parameters; None for those that do not apply."""
        return {
            "attempt": self.attempt,
            "split": self.file.split,
            "step": self.file.step,
            "step_kind": self.file.step_kind,
            "source": self.file.source,
            "format": self.file.kind.format,
            "offset": self.offset,
            "producer": self.file.kind.producer(self.file.path) or None,
            "generation": self.generation or None,
            "columns": self.file.columns or None,
        }


def build_file_stamp(stat: os.stat_result) -> Stamp:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def read_finished_file(dump_file: DumpFile, attempt: str, on_truncated: Callable[[str], None]) -> Iterator[FilePart]:
    """Yields a file that is written at once as one part, an append-only file in chunks of complete lines.

    Calls `on_truncated` with the source of a file that may still be written. Raises OSError.
    """
    with dump_file.path.open("rb") as file:
        stamp = build_file_stamp(dump_file.path.stat())
        if not dump_file.kind.grows:
            if not is_complete_file(file, stamp[0], dump_file.path.suffix):
                on_truncated(dump_file.source)
            sha256, body = hash_open_file(file)
            yield FilePart(dump_file, attempt, sha256, stamp[0], stamp, body)
            return
        offset = 0
        while lines := read_complete_lines(file, offset) or read_last_line(file, offset, stamp[0]):
            yield FilePart(dump_file, attempt, hashlib.sha256(lines).hexdigest(), len(lines), stamp, lines, offset)
            offset += len(lines)
        if offset < stamp[0]:
            on_truncated(dump_file.source)
