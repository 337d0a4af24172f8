"""`rolloutdeck labels import`: sends the labels of a file in parts, and lists the rows that were not imported.

A part that was sent changes nothing when it is sent again, so an interrupted import is repeated from the start.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import sys
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import IO, Any

from rolloutdeck.cli.common import (
    call_with_retries,
    clean_line,
    connect,
    format_count,
    open_text_replacement,
    print_message,
    require_project,
    send_request,
)
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient

ROWS_PER_REQUEST = 1000
BYTES_PER_REQUEST = 4 << 20
MAX_ROW_BYTES = 8 << 20
MAX_LISTED = 20
TRIES = 6
TIMEOUT_SECONDS = 120.0
# Of a file that is not there, cut or damaged; of an encrypted ZIP file it is RuntimeError.
READ_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError)
WRITTEN_BY = "`rolloutdeck export --layout labels --format jsonl`"
COUNTS = ("new", "changed", "unchanged")
KINDS = {
    "unmatched": "without a sample",
    "ambiguous": "with several samples",
    "invalid": "not valid",
    "forbidden": "of other people",
    "older": "older than the stored label",
}


class LabelFileError(UsageError):
    """The imported file can't be read, or not to its end."""


@dataclass
class Line:
    """A line of the file. `problem` says why it is not sent; `row` is None if it is not a JSON object."""

    number: int
    text: bytes
    row: dict[str, Any] | None = None
    problem: str = ""


@dataclass
class Summary:
    """What the server said about all parts so far."""

    rows: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    unused_fields: set[str] = field(default_factory=set)

    @property
    def failed(self) -> int:
        return sum(self.problems.values()) - self.problems["older"]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "labels": {name: self.labels[name] for name in COUNTS},
            "matched": {name: self.matched[name] for name in ("id", "place", "text")},
            "problems": {name: self.problems[name] for name in KINDS},
            "unused_fields": sorted(self.unused_fields),
            "dry_run": dry_run,
        }


class Problems:
    """Prints the first problems, and writes all of them to a file, each row with its problem."""

    def __init__(self, file: IO[str] | None) -> None:
        self.file, self.count = file, 0

    def add(self, line: Line, kind: str, message: str) -> None:
        self.count += 1
        if self.count <= MAX_LISTED:
            print_message(f"line {line.number:,}, {kind}: {clean_line(message)}")
        if self.file:
            row = line.row if line.row is not None else {"line": line.text.decode("utf-8", "replace").rstrip("\r\n")}
            json.dump({**row, "problem": f"{kind}: {message}"}, self.file, ensure_ascii=True)
            self.file.write("\n")

    def end(self) -> None:
        if self.count > MAX_LISTED:
            hint = "" if self.file else "; --unmatched FILE writes all of them"
            print_message(f"{self.count - MAX_LISTED:,} more{hint}")


class UploadProgress:
    """The part of the file that was sent: on a terminal in place, otherwise a line every 5 s."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.is_terminal, self.printed_at = sys.stderr.isatty(), time.monotonic()

    def add(self, size: int, summary: Summary) -> None:
        self.done += size
        now = time.monotonic()
        if now - self.printed_at < (0.1 if self.is_terminal else 5.0):
            return
        self.printed_at = now
        size_text = f"{self.done / 1e6:,.1f}" + (f" of {self.total / 1e6:,.1f}" if self.total else "")
        text = f"{format_count(summary.rows, 'row')}, {size_text} MB"
        if self.is_terminal:
            print(f"\r{text} ", end="", file=sys.stderr, flush=True)
        else:
            print_message(text)

    def clear(self) -> None:
        if self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def import_labels(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    path: Path = args.file
    is_input = may_replace_file(args)
    common = {
        "project": require_project(args, settings),
        "run": args.run,
        "all_matches": args.all_matches,
        "dry_run": args.dry_run,
        "time": read_file_time(path),
        "file": path.name,
    }
    summary = Summary()
    with contextlib.ExitStack() as stack:
        lines, size = open_lines(path, stack)
        first = next(lines, None)
        if first is None:
            raise UsageError(f"{path} has no rows.")
        if first.problem:
            raise UsageError(f"{path}, line {first.number}, {first.problem}. The file must be one of {WRITTEN_BY}.")
        written = None
        if args.unmatched:
            written = stack.enter_context(open_text_replacement(args.unmatched, is_input=is_input))
        problems, progress = Problems(written), UploadProgress(size)
        try:
            for part in split_parts(first, lines):
                send_part(server, common, part, summary, problems, progress)
                progress.add(sum(len(line.text) for line in part), summary)
        except UsageError as error:
            progress.clear()
            if isinstance(error, LabelFileError) and summary.rows:
                raise LabelFileError(f"{error} {format_count(summary.rows, 'row')} before are done.") from error
            raise
        progress.clear()
        problems.end()
    if args.json:
        print(json.dumps(summary.to_json(dry_run=args.dry_run), ensure_ascii=False))
    else:
        print_summary(summary, dry_run=args.dry_run)
    return 1 if summary.failed else 0


def may_replace_file(args: argparse.Namespace) -> bool:
    """Returns whether --unmatched names the imported file. Raises UsageError if rows would be lost by replacing it."""
    path, written = args.file, args.unmatched
    if not written or not written.exists():
        return False
    inputs = find_data_files(path) if path.is_dir() else [path]
    if not any(file.exists() and file.samefile(written) for file in inputs):
        return False
    if args.dry_run:
        raise UsageError(f"--dry-run imports nothing, so --unmatched must not replace {written}. Name another file.")
    if path.suffix == ".gz" or zipfile.is_zipfile(written):
        raise UsageError(f"--unmatched writes JSONL, so it can't replace the packed file {written}. Name another file.")
    return True


def read_file_time(path: Path) -> str:
    """Returns when the file was written: rows without a time are as old. "" for standard input."""
    if str(path) == "-":
        return ""
    try:
        newest = max(file.stat().st_mtime for file in ([path] if not path.is_dir() else find_data_files(path)))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}.") from error
    return datetime.fromtimestamp(newest, timezone.utc).isoformat()


def find_data_files(folder: Path) -> list[Path]:
    """Returns the data of a folder that `rolloutdeck export` wrote. Raises UsageError."""
    files = sorted((folder / "data").glob("*.jsonl"))
    if not files:
        raise UsageError(f"{folder} has no data/*.jsonl. Give a JSONL file, or a folder of {WRITTEN_BY}.")
    return files


def open_lines(path: Path, stack: contextlib.ExitStack) -> tuple[Iterator[Line], int]:
    """Returns the lines of a file, of `-` (standard input), of a folder or ZIP file of an export, and their size in
    bytes, 0 if unknown. Raises UsageError."""
    if str(path) == "-":
        return read_lines(path, sys.stdin.buffer), 0
    try:
        if path.is_dir():
            files = find_data_files(path)
            size = sum(file.stat().st_size for file in files)
            return read_lines(path, (line for file in files for line in stack.enter_context(file.open("rb")))), size
        if zipfile.is_zipfile(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = [member for member in archive.infolist() if member.filename.endswith(".jsonl")]
            if not members:
                raise UsageError(f"{path} has no .jsonl file. It must be one of {WRITTEN_BY}.")
            size = sum(member.file_size for member in members)
            lines = (line for member in members for line in stack.enter_context(archive.open(member)))
            return read_lines(path, lines), size
        if path.suffix == ".gz":
            return read_lines(path, stack.enter_context(gzip.open(path, "rb"))), 0
        return read_lines(path, stack.enter_context(path.open("rb"))), path.stat().st_size
    except READ_ERRORS as error:
        raise build_read_error(path, error) from error


def read_lines(path: Path, lines: Iterable[bytes]) -> Iterator[Line]:
    """Yields the lines that are not empty. Raises UsageError if they can't be read to the end."""
    try:
        for number, text in enumerate(lines, 1):
            text = text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
            if text.strip():
                yield parse_line(number, text)
    except READ_ERRORS as error:
        raise build_read_error(path, error) from error


def build_read_error(path: Path, error: Exception) -> LabelFileError:
    return LabelFileError(f"{path} can't be read: {getattr(error, 'strerror', '') or error}.")


def parse_line(number: int, text: bytes) -> Line:
    """Returns a line with all of its text, also if it is too long: --unmatched may replace the file that has it."""
    row, problem = None, ""
    try:
        value = json.loads(text)
        row = value if isinstance(value, dict) else None
        problem = "is not a JSON object" if row is None else ""
    except (ValueError, RecursionError):
        problem = "is not JSON"
    if len(text) > MAX_ROW_BYTES:
        problem = f"is longer than {MAX_ROW_BYTES >> 20} MiB"
    return Line(number, text, row, problem)


def split_parts(first: Line, rest: Iterable[Line]) -> Iterator[list[Line]]:
    part, size = [first], len(first.text)
    for line in rest:
        if len(part) >= ROWS_PER_REQUEST or size + len(line.text) > BYTES_PER_REQUEST:
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line.text)
    yield part


def send_part(
    server: ServerClient,
    common: Mapping[str, Any],
    part: list[Line],
    summary: Summary,
    problems: Problems,
    progress: UploadProgress,
) -> None:
    """Sends the rows of some lines. Raises UsageError."""
    rows = [line for line in part if not line.problem]
    found: list[tuple[Line, str, str]] = [(line, "invalid", line.problem) for line in part if line.problem]
    summary.rows += len(part)
    if rows:
        body = {**common, "rows": [line.row for line in rows]}
        answer = send_with_retries(server, body, summary.rows - len(part))
        summary.labels.update(answer["labels"])
        summary.matched.update(answer["matched"])
        summary.unused_fields.update(answer["unused_fields"])
        found += [(rows[problem["row"]], problem["kind"], problem["message"]) for problem in answer["problems"]]
    if found:
        progress.clear()
    for line, kind, message in sorted(found, key=lambda each: each[0].number):
        summary.problems[kind] += 1
        problems.add(line, kind, message)


def send_with_retries(server: ServerClient, body: Mapping[str, Any], sent: int) -> dict[str, Any]:
    """Waits and tries again if the server is busy or does not answer. `sent`: rows before these. Raises UsageError."""
    send = partial(send_request, server, "POST", "labels/import/", body, timeout=TIMEOUT_SECONDS)
    try:
        return dict(call_with_retries(send, TRIES, 0.5).json())
    except UsageError as error:
        done = f" {format_count(sent, 'row')} before are done; run the command again to continue." if sent else ""
        raise UsageError(f"{error}{done}") from error


def print_summary(summary: Summary, *, dry_run: bool) -> None:
    counts = [f"{summary.labels[name]:,} {name}" for name in COUNTS]
    counts += [f"{summary.problems[kind]:,} {text}" for kind, text in KINDS.items() if summary.problems[kind]]
    print(f"{format_count(summary.rows, 'row')}: {', '.join(counts)}.{' Nothing is stored: --dry-run.' * dry_run}")
    ways = [f"{count:,} by {way}" for way in ("id", "place", "text") if (count := summary.matched[way])]
    if ways:
        print(f"Samples found: {', '.join(ways)}.")
    if summary.unused_fields:
        names = ", ".join(clean_line(name) for name in sorted(summary.unused_fields)[:20])
        print_message(f"Fields that were not used: {names}.")
