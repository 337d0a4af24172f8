"""Splits a dump with the rows of several steps into one dump per step, of the same source.

The new dumps have the same identities when the dump is indexed again. The original dump then has no rows of its own.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from rollouts.formats import SPLIT_EXTRAS_KEY, TOKEN_ONLY_TABLE_FORMATS
from rollouts.ingest import DumpHeader, accept_dump
from rollouts.models import Dump
from rollouts.samples import Record, to_integer, to_json
from rollouts.storage import create_incoming_path

MAX_BUFFERED_BYTES = 16 << 20
COPIED_FIELDS = ("split", "step_kind", "source", "offset", "generation", "producer")
RECORD_FIELDS = frozenset(field.name for field in fields(Record))


def get_part_format(dump: Dump) -> str:
    """Returns the format of the dumps that a dump with several steps is split into."""
    return dump.format if dump.format in TOKEN_ONLY_TABLE_FORMATS else "native"


def find_steps(records: Iterable[Record]) -> tuple[int | None, bool]:
    """Returns the first step that a record has, None if none has one, and whether there are several. Stops at the
    second step."""
    first: int | None = None
    for record in records:
        step = to_integer(record.extras.get("step"))
        if step is not None and first is not None and step != first:
            return first, True
        first = step if first is None else first
    return first, False


def iter_with_steps(records: Iterable[Record], first: int) -> Iterator[tuple[Record, int]]:
    """Yields each record with its step. A record without a step has the step of the previous record; before all others
    it has the `first` one."""
    last = first
    for record in records:
        step = to_integer(record.extras.get("step"))
        last = last if step is None else step
        yield record, last


def split_by_step(dump: Dump, records: Iterable[Record], first: int, renew_claim: Callable[[], None]) -> list[Dump]:
    """Returns the new dumps, ordered by step. `first` is the first step that a record has. `renew_claim` is called
    before each of them. Raises StorageUnavailableError."""
    files, step_dumps, part_format = StepFiles(), list[Dump](), get_part_format(dump)
    try:
        for record, step in iter_with_steps(records, first):
            files.add(step, serialize_record(record, part_format))
        files.flush()
        correct_arrivals(dump)
        for step, path in sorted(files.paths.items()):
            renew_claim()
            step_dumps.append(accept_step_dump(dump, step, path))
        return step_dumps
    finally:
        for path in files.paths.values():
            path.unlink(missing_ok=True)


class StepFiles:
    """Temporary files with the lines of each step."""

    def __init__(self) -> None:
        self.lines: dict[int, list[bytes]] = defaultdict(list)
        self.paths: dict[int, Path] = {}
        self.buffered = 0

    def add(self, step: int, line: bytes) -> None:
        self.lines[step].append(line)
        self.buffered += len(line)
        if self.buffered > MAX_BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        for step, lines in self.lines.items():
            path = self.paths.setdefault(step, create_incoming_path())
            with path.open("ab") as file:
                file.writelines(lines)
        self.lines.clear()
        self.buffered = 0


def serialize_record(record: Record, part_format: str = "native") -> bytes:
    """Returns a line as `Run.log_samples` would write it. A textless record has no prompt and no response."""
    row: dict[str, Any] = dict(record.extras)
    if part_format == "native" and (colliding := RECORD_FIELDS.intersection(row)):
        row[SPLIT_EXTRAS_KEY] = {name: row.pop(name) for name in sorted(colliding)}
    excluded = ("extras", "textless", *(("prompt", "response") if record.textless else ()))
    for field in fields(Record):
        value = getattr(record, field.name)
        if field.name not in excluded and value not in (None, {}):
            row[field.name] = value
    return to_json(row).encode("utf-8", "surrogatepass") + b"\n"


def correct_arrivals(dump: Dump) -> None:
    """Sets the arrival of the parts of a split file to that of the first version of the file: earlier releases stored
    the time of the split. When a later version is split, its parts get its own time."""
    same_source = Dump.objects.filter(**{name: getattr(dump, name) for name in ("run", "attempt", *COPIED_FIELDS)})
    arrivals = list(same_source.filter(step=None).values_list("received_at", flat=True))
    parts = same_source.exclude(step=None).exclude(received_at__in=arrivals)
    parts.update(received_at=min(arrivals, default=dump.received_at))


def accept_step_dump(dump: Dump, step: int, path: Path) -> Dump:
    """The new dump has arrived when `dump` did, whenever a worker splits it."""
    copied = {name: getattr(dump, name) for name in COPIED_FIELDS}
    # The columns have our names now.
    header = DumpHeader(attempt=dump.attempt.key, step=step, format=get_part_format(dump), **copied)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return accept_dump(dump.run, header, sha256, path, path.stat().st_size, dump.received_at)[0]
