"""A dump whose rows are of several steps becomes a dump for each of them, of the same source.

They come to the same names whenever it is indexed again. It has no rows of its own then.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from rollouts.formats import TOKEN_ONLY_TABLE_FORMATS
from rollouts.ingest import DumpHeader, accept_dump
from rollouts.models import Dump
from rollouts.samples import Record, to_integer, to_json
from rollouts.storage import create_incoming_path

HELD_BYTES = 16 << 20  # of lines that wait to be written
NATIVE = "native"


def has_several_steps(records: Iterable[Record]) -> bool:
    """Whether they say different steps."""
    seen = {step for _, step in with_steps(records, most=2)}
    return len(seen) > 1


def with_steps(records: Iterable[Record], most: int = 0) -> Iterator[tuple[Record, int]]:
    """Each with its step; one that does not say it is of the step of the one before. Ends after `most` steps."""
    seen: set[int] = set()
    last = 0
    for record in records:
        told = to_integer(record.extras.get("step"))
        last = last if told is None else told
        yield record, last
        seen.add(last)
        if most and len(seen) >= most:
            return


def split_by_step(dump: Dump, records: Iterable[Record]) -> list[Dump]:
    """The dumps of the steps, in their order. Raises StorageUnavailable."""
    files = Files()
    try:
        for record, step in with_steps(records):
            files.add(step, line(record))
        return [accepted(dump, step, path) for step, path in files.written()]
    finally:
        files.remove()


class Files:
    """Lines by step, in files that are gone afterwards."""

    def __init__(self) -> None:
        self.lines: dict[int, list[bytes]] = defaultdict(list)
        self.paths: dict[int, Path] = {}
        self.held = 0

    def add(self, step: int, text: bytes) -> None:
        self.lines[step].append(text)
        self.held += len(text)
        if self.held > HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        for step, lines in self.lines.items():
            path = self.paths.setdefault(step, create_incoming_path())
            with path.open("ab") as file:
                file.writelines(lines)
        self.lines.clear()
        self.held = 0

    def written(self) -> list[tuple[int, Path]]:
        self.flush()
        return sorted(self.paths.items())

    def remove(self) -> None:
        for path in self.paths.values():
            path.unlink(missing_ok=True)


def line(record: Record) -> bytes:
    """A row as `Run.log_samples` would write it; without texts where there are none."""
    row: dict[str, Any] = dict(record.extras)
    left_out = ("extras", "textless", *(("prompt", "response") if record.textless else ()))
    for each in fields(Record):
        value = getattr(record, each.name)
        if each.name not in left_out and value not in (None, {}):
            row[each.name] = value
    return to_json(row).encode("utf-8", "surrogatepass") + b"\n"


def accepted(dump: Dump, step: int, path: Path) -> Dump:
    header = DumpHeader(
        attempt=dump.attempt.key,
        split=dump.split,
        step=step,
        step_kind=dump.step_kind,
        source=dump.source,
        format=dump.format if dump.format in TOKEN_ONLY_TABLE_FORMATS else NATIVE,  # its columns have our names now
        offset=dump.offset,
        generation=dump.generation,
        producer=dump.producer,
    )
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return accept_dump(dump.run, header, sha256, path, path.stat().st_size)[0]
