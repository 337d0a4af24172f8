"""What the writer's queue holds: metrics, samples, files and notes, each with the bytes of its body."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rolloutdeck.client import serialize, spool
from rolloutdeck.client.rows import RowBatch
from rolloutdeck.protocol import (
    JSON_TEXTS,
    MAX_DUMP_BYTES,
    NATIVE_COLUMNS,
    choose_row_format,
    find_other_names,
    find_row_problem,
    guess_columns,
    has_response_part,
    parse_column_mapping,
    rename_keys,
)

CHUNK_BYTES = 1 << 20
YIELD_BYTES = 1 << 18  # of JSON, about 3 ms; then a busy trainer thread gets the interpreter lock
MAX_EXAMPLE_BYTES = 200  # of a row in a warning
MAX_PROBLEMS = 50  # different reasons why rows of a call are no samples
MAX_COPY_TRIES = 3  # of a file that changes while it is copied


class UnwritableItemError(Exception):
    """The given data can't be written. The message is the reason."""


class SourceChangedError(Exception):
    """A file changed while it was copied."""


@dataclass
class MetricsItem:
    """Metrics as given; their `values` are converted to numbers in the writer's thread.

    `size` is counted once: the trainer may change nested values later, which must not raise in the writer's thread.
    """

    attempt: str
    points: list[dict[str, Any]]
    kind: str = "metrics"
    label: str = "metric points"
    query: dict[str, Any] = field(default_factory=dict)
    invalid_count: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = 200 + sum(64 * _count_values(point["values"]) for point in self.points)

    @property
    def count(self) -> int:
        return len(self.points)

    def body(self) -> Iterator[bytes]:
        self.invalid_count, points = 0, []
        for point in self.points:
            try:
                points.append({**point, "values": serialize.flatten_metrics(point["values"])})
            except Exception:  # objects of other libraries may raise anything; only their own point is lost
                self.invalid_count += 1
        points = [point for point in points if point["values"]]
        if not points:
            raise UnwritableItemError("no numbers in them")
        yield json.dumps({"attempt": self.attempt, "points": points}, allow_nan=False).encode()


def _count_values(values: Mapping[str, Any]) -> int:
    return sum(_count_values(value) if isinstance(value, Mapping) else 1 for value in values.values())


@dataclass
class RowProblem:
    """Why some rows of a call are no samples, with the first of them: its number, from 1, and its JSON."""

    reason: str
    number: int
    example: str
    count: int = 0


@dataclass
class SamplesItem:
    """Rows of one `log_samples` call.

    The parts of the samples are the columns that `query` maps, or that have a common name. All rows are sent, since the
    server counts those that are no samples; `problems` describes them by reason.
    """

    rows: RowBatch
    query: dict[str, Any]
    kind: str = "dump"
    label: str = "samples"
    invalid_count: int = 0
    problems: dict[str, RowProblem] = field(default_factory=dict)
    columns: Mapping[str, str] | None = None  # None: rows may hold several samples, and are not checked
    other_names: Mapping[str, str] = field(default_factory=dict)  # {name: part}: rows have it in place of the column
    is_native: bool = False

    @property
    def size(self) -> int:
        return self.rows.size

    @property
    def count(self) -> int:
        return self.rows.count

    def detect_format(self) -> None:
        """Sets `query`, `columns`, `other_names` and `is_native` by the rows. Called in the writer's thread, since it
        reads all rows."""
        self.is_native = self.query.get("format") == "native"
        if not self.is_native:
            layouts, known = self.rows.list_layouts(), parse_column_mapping(self.query.get("columns", ""))
            names = list(dict.fromkeys(chain.from_iterable(layouts)))
            columns = guess_columns(names, known)
            self.columns = columns if has_response_part(columns) else None
            if self.columns and not known and len(layouts) > 1:
                self.other_names = find_other_names(layouts, columns)
            form = "table" if known else choose_row_format(names, self.rows.find_example())
            if form == "native" and self.other_names:  # their values may be those of a table: a list of scores
                form = "table"
            self.query = {**self.query, "format": form}
            self.is_native = form == "native"
        if self.is_native:
            self.columns = NATIVE_COLUMNS

    def body(self) -> Iterator[bytes]:
        """Yields JSON lines in chunks.

        Each write and hash releases the interpreter lock, and getting it back from a busy thread takes a switch
        interval (5 ms). So the chunks are few and large, and between them the lock is released only as often as needed
        to keep the trainer's longest stall below 10 ms.
        """
        lines: list[bytes] = []
        serializer = serialize.RowSerializer()
        size = yielded_at = self.invalid_count = 0
        self.problems = {}
        columns = self.columns or {}
        prompt, response = columns.get("prompt", ""), columns.get("response", "")
        tokens = columns.get("response_ids", "") if self.query.get("format") == "token-table" else ""
        for number, row in enumerate(self.rows, 1):
            if self.other_names and isinstance(row, Mapping):
                row = rename_keys(row, self.other_names, columns)
            is_plain = type(row) is dict and _is_plain_text(row.get(prompt, ""))
            is_plain = is_plain and (row.get(tokens) is not None if tokens else _is_plain_text(row.get(response)))
            try:
                lines.append(serializer.serialize_row(row if is_plain else _mark_objects(row, (prompt, response))))
            except Exception:  # objects of other libraries may raise anything; only their own row is lost
                self.invalid_count += 1
                continue
            if not is_plain and self._has_problem(number, lines[-1]):
                serializer.forget_last_row()  # the server does not read it
            size += len(lines[-1])
            if size >= CHUNK_BYTES:
                yield b"".join(lines)
                lines, size, yielded_at = [], 0, 0
            elif size - yielded_at >= YIELD_BYTES:
                yielded_at = size
                time.sleep(0)
        if self.invalid_count == self.count:
            raise UnwritableItemError("no JSON form")
        yield b"".join(lines)

    def _has_problem(self, number: int, line: bytes) -> bool:
        reason = (
            "" if self.columns is None else find_row_problem(json.loads(line), self.columns, is_native=self.is_native)
        )
        if not reason:
            return False
        if reason in self.problems or len(self.problems) < MAX_PROBLEMS:
            example = line[:MAX_EXAMPLE_BYTES].decode("utf-8", "replace").strip()
            self.problems.setdefault(reason, RowProblem(reason, number, example)).count += 1
        return True


def _is_plain_text(value: Any) -> bool:
    """Whether a prompt or response needs no check: most are texts, and not JSON."""
    return type(value) is str and not value.startswith(JSON_TEXTS)


def _mark_objects(row: Any, columns: Iterable[str]) -> Any:
    """Returns the row with a description of each prompt or response that is an object of Python.

    Its text would be `<Completion object at 0x7f...>`. The server rejects the description, which is an object of JSON.
    """
    if not isinstance(row, Mapping):
        return row if serialize.has_json_form(row) else {"object": type(row).__name__}
    marked = {name: row[name] for name in columns if name in row and not serialize.has_json_form(row[name])}
    return {**row, **{name: {"object": type(value).__name__} for name, value in marked.items()}} if marked else row


@dataclass
class FileItem:
    """A file that the trainer wrote. Its bytes are copied unchanged."""

    path: Path
    query: dict[str, Any]
    kind: str = "dump"
    label: str = "files"
    size: int = 512
    count: int = 1
    copies: int = 0

    def body(self) -> Iterator[bytes]:
        """Yields the file's bytes at one moment, unless the file changes at every try.

        Raises SourceChangedError or UnwritableItemError.
        """
        self.copies += 1
        try:
            before = self._read_stamp()
            if before[0] > MAX_DUMP_BYTES:
                raise UnwritableItemError(f"larger than {MAX_DUMP_BYTES >> 30} GiB")
            yield from spool.read_file_chunks(self.path, CHUNK_BYTES)
            if self.copies < MAX_COPY_TRIES and self._read_stamp() != before:
                raise SourceChangedError
        except OSError as error:
            raise UnwritableItemError(f"can't be read ({error.strerror})") from error

    def _read_stamp(self) -> tuple[int, int]:
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns


@dataclass
class NoteItem:
    """A small JSON body: it opens or ends a run, registers an artifact, or reports a replayed step."""

    kind: str
    data: Mapping[str, Any]
    label: str = "notes"
    query: dict[str, Any] = field(default_factory=dict)
    size: int = 512
    count: int = 1

    def body(self) -> Iterator[bytes]:
        yield json.dumps(self.data, default=serialize.convert_for_json).encode()


WriterItem = MetricsItem | SamplesItem | FileItem | NoteItem
