"""The body files of a scope: Parquet files with the rows of many dumps, of which a scope covers some pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from rollouts.models import Dump, DuplicateSource
from rollouts.storage import fetch_body_file

if TYPE_CHECKING:
    from rollouts.query.sql import QueryScope

MAX_PIECES: Final = 64
# Files that are scanned together. Each scan costs milliseconds more than its files, and the first results wait for it.
MAX_FILES_AT_ONCE: Final = 32
MAX_BYTES_AT_ONCE: Final = 128 << 20

FileVersion = tuple[str, int, int]  # path, modification time, size


@dataclass(frozen=True, slots=True)
class BodyFilePart:
    """A body file and its `pieces` (first row, row count) to scan; no pieces means the full file. `newest_step` is None
    if its dumps do not name a step. `bytes` is the size of the file, 0 if unknown."""

    path: str
    pieces: tuple[tuple[int, int], ...]
    newest_step: int | None = field(default=None, compare=False)
    bytes: int = field(default=0, compare=False)


def find_dumps(scope: QueryScope) -> QuerySet[Dump]:
    """Returns the scope's dumps that have a body."""
    same_step = {name: OuterRef(name) for name in ("attempt", "split", "step_kind", "step")}
    current = Dump.objects.exclude(state=Dump.State.SUPERSEDED).filter(run=scope.run, segment__isnull=False)
    return current.filter(Q(step=None) | Q(Exists(scope.steps.filter(**same_step))))


def has_several_bodies(scope: QueryScope) -> bool:
    """Returns whether any sample has more than one body."""
    return find_dumps(scope).filter(Exists(DuplicateSource.objects.filter(dump=OuterRef("pk")))).exists()


def list_body_parts(scope: QueryScope) -> list[BodyFilePart]:
    """Returns the body files of the scope's dumps, newest step first."""
    dumps = find_dumps(scope).order_by(F("step").desc(nulls_first=True), "-pk")
    files = ("segment__path", "segment__rows", "segment__bytes")
    pieces: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    newest_steps: dict[tuple[str, int, int], int | None] = {}
    for *file, offset, count, step in dumps.values_list(*files, "segment_offset", "rows", "step"):
        pieces[tuple(file)].append((offset, count))
        newest_steps.setdefault(tuple(file), step)
    return [
        BodyFilePart(path, merge_pieces(file_pieces, rows), newest_steps[path, rows, size], size)
        for (path, rows, size), file_pieces in pieces.items()
    ]


def take_parts(parts: Sequence[BodyFilePart]) -> Sequence[BodyFilePart]:
    """Returns the first files, as many as are scanned together."""
    size = 0
    for count, part in enumerate(parts[:MAX_FILES_AT_ONCE], start=1):
        size += part.bytes
        if size >= MAX_BYTES_AT_ONCE:
            return parts[:count]
    return parts[:MAX_FILES_AT_ONCE]


def merge_pieces(pieces: Sequence[tuple[int, int]], size: int) -> tuple[tuple[int, int], ...]:
    """Merges adjacent pieces. Returns no pieces if they are the full file or too many to be useful."""
    merged: list[tuple[int, int]] = []
    for offset, count in sorted(pieces):
        if merged and sum(merged[-1]) >= offset:
            start = merged[-1][0]
            merged[-1] = (start, max(sum(merged[-1]), offset + count) - start)
        else:
            merged.append((offset, count))
    return () if len(merged) > MAX_PIECES or merged == [(0, size)] else tuple(merged)


def get_file_version(part: BodyFilePart) -> FileVersion:
    """Returns what identifies the content: compaction can write another file with the same name. Raises
    FileNotFoundError."""
    path = fetch_body_file(part.path)
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size
