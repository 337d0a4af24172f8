"""`rolloutdeck import`: uploads the dump files of a finished run and waits until they are indexed."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, TypeVar

from rolloutdeck.cli import import_artifacts
from rolloutdeck.cli.common import (
    build_server_client,
    format_count,
    format_sentence,
    load_settings,
    parse_artifact_options,
    parse_scan_options,
    print_message,
    require_run,
)
from rolloutdeck.cli.import_artifacts import ArtifactImport
from rolloutdeck.cli.watch import FILES_ATTEMPT
from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import format_column_names, format_step_ranges
from rolloutdeck.trainer_api import find_writer, list_kinds
from rolloutdeck.trainers.tables import read_table_columns
from rolloutdeck.watch import (
    COMPLETENESS_CHECKS,
    TABLE_SUFFIXES,
    ActionRequiredError,
    ArtifactOptions,
    DumpFile,
    FilePart,
    RetryLaterError,
    ScanResult,
    UploadRejectedError,
    UploadTarget,
    build_file_stamp,
    build_usage_error,
    describe_truncation,
    find_files,
    hash_open_file,
    is_complete_file,
    read_complete_lines,
    read_file_head,
    scan_folders,
)

T = TypeVar("T")

TRIES = 5
POLL_SECONDS = 0.5
STUCK_SECONDS = 120.0  # stop waiting if no dump was indexed for this long
MAX_EXAMPLES = 3
MAX_PROBED_FILES = 1000  # files of a folder in which a table is searched


@dataclass
class ImportReport:
    """The result of the upload.

    files, steps, known: by axis (`train`, `eval`, `metrics`); `known` counts files that the server already had.
    refused: (source, message of the server).
    parts: (source, sha256) of all parts that were sent or known; `_wait` looks for their dumps.
    stepless: sources whose rows contain the step number.
    truncated: sources that may still be written.
    was_running: the run was being trained when the import started.
    """

    files: Counter[str] = field(default_factory=Counter)
    steps: dict[str, set[int]] = field(default_factory=dict)
    known: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    parts: set[tuple[str, str]] = field(default_factory=set)
    stepless: set[str] = field(default_factory=set)
    truncated: list[str] = field(default_factory=list)
    was_running: bool = False
    steps_to_replay: ArtifactImport = field(default_factory=ArtifactImport)


class ProgressBar:
    """The progress of the upload: a bar on a terminal, otherwise a line every 5 s."""

    def __init__(self, total: int, files: int) -> None:
        self.total, self.files, self.done, self.file = max(total, 1), files, 0, 0
        self.is_terminal, self.printed_at = sys.stderr.isatty(), time.monotonic()

    def add(self, size: int) -> None:
        self.done += size
        self.print()

    def print(self) -> None:
        now = time.monotonic()
        if now - self.printed_at < (0.1 if self.is_terminal else 5.0):
            return
        self.printed_at = now
        share = min(1.0, self.done / self.total)
        text = (
            f"{self.file:,} of {format_count(self.files, 'file')}, {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        )
        if self.is_terminal:
            print(f"\r[{'#' * round(30 * share):<30}] {text} ", end="", file=sys.stderr, flush=True)
        else:
            print_message(text)

    def end(self) -> None:
        if self.is_terminal:
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)


def main(args: argparse.Namespace) -> int:
    settings, scan_options, artifact_options = (
        load_settings(args),
        parse_scan_options(args),
        parse_artifact_options(args, "now"),
    )
    project, name = require_run(args, settings)
    scan = scan_folders(args.paths, scan_options) if args.paths else ScanResult()
    found = _exclude_artifacts(scan, artifact_options)
    for note in found.notes:
        print_message(note)
    if not args.paths and not artifact_options.tokenizer:
        raise UsageError("Nothing to import. Give files or folders, or the run's tokenizer with --tokenizer.")
    if args.paths and not found.files and not found.steps:
        _print_skipped(found)
        where = ", ".join(map(str, args.paths))
        hint = _build_table_hint(args.paths)
        raise UsageError(f"Nothing to import below {where}: no dump file of a known format.{hint}")
    framework = find_writer(found.files[0].kind.format).name if found.files else found.trainer
    target = UploadTarget(
        build_server_client(settings), project, name, args.attempt or FILES_ATTEMPT, settings.run_id, framework
    )
    report = _upload(target, found, artifact_options)
    _print_table(report)
    _print_skipped(found)
    _finish(target, report)
    status = 0 if args.no_wait else _wait(target, report)
    for source, message in report.refused + report.steps_to_replay.problems:
        print_message(f"{source} was refused: {format_sentence(message)}")
    if target.url:
        print_message(target.url)
    return 1 if report.refused or report.steps_to_replay.problems else status


def _build_table_hint(paths: Sequence[Path]) -> str:
    """Returns how to import the first table among these files with --map; empty if there is no table."""
    files = islice((file for path in paths for file in find_files(path)), MAX_PROBED_FILES)
    table = next(
        (file for file in files if file.suffix in TABLE_SUFFIXES and file.is_file() and file.stat().st_size), None
    )
    if table is None:
        return ""
    names = read_table_columns(table, read_file_head(table))
    has = f"; {table.name} has {format_column_names(names)}" if names else ""
    return f" For a table, name its columns: --map prompt=COLUMN,response=COLUMN{has}."


def _exclude_artifacts(found: ScanResult, options: ArtifactOptions) -> ScanResult:
    """Returns the scan result, without replayable steps if --artifacts is `never`."""
    if options.mode == "never" and found.steps:
        found.skipped["replayable steps, because of --artifacts never"] = [str(step.path) for step in found.steps]
        found.steps = []
    return found


def _upload(target: UploadTarget, found: ScanResult, options: ArtifactOptions) -> ImportReport:
    """Uploads all files. Raises UsageError if the server does not answer or refuses the run."""
    report, now = ImportReport(), options.mode == "now"
    sizes = [file.path.stat().st_size for file in found.files]
    sizes += [(step.path / name).stat().st_size for step in found.steps for name in step.files] if now else []
    bar = ProgressBar(sum(sizes), len(sizes))
    try:
        report.was_running = _call_with_retries(target.is_running)
        _call_with_retries(target.open_run)
        print_message(f"Importing {_describe_content(found)} into {target.project}/{target.name}.")
        for file in found.files:
            bar.file += 1
            _upload_file(target, file, report, bar)
        for step in import_artifacts.hash_steps(found, options):
            at_once = now or step.role == "tokenizer"
            bar.file += len(step.files) if at_once else 0
            import_artifacts.send_artifact(target, step, at_once, report.steps_to_replay, _call_with_retries, bar.add)
    except (RetryLaterError, UploadRejectedError) as error:
        bar.end()
        sent = sum(report.files.values())
        also = f" {format_count(sent, 'file')} uploaded. Run the same command again to upload the rest." if sent else ""
        raise UsageError(f"{build_usage_error(error)}{also}") from error
    bar.end()
    return report


def _describe_content(found: ScanResult) -> str:
    files = [format_count(len(found.files), "file")] if found.files else []
    steps = [f"{format_count(len(found.steps), 'step')} to replay"] if found.steps else []
    return " and ".join(files + steps) or "the tokenizer"


def _upload_file(target: UploadTarget, found: DumpFile, report: ImportReport, bar: ProgressBar) -> None:
    """Uploads one file and adds the result to the report. Raises RetryLaterError, UsageError."""
    axis = "metrics" if found.kind.content == "metrics" else found.split
    new = False
    try:
        for part in iter_parts(found, target.attempt, report):
            new |= _call_with_retries(lambda part=part: target.upload(part, bar.add))  # type: ignore[misc]
            report.bytes += part.size
            report.parts.add((found.source, part.sha256))
    except UploadRejectedError as error:
        report.refused.append((found.source, str(error)))
        return
    except OSError as error:
        raise UsageError(f"{found.path} can't be read: {error.strerror or error}.") from error
    report.files[axis] += 1
    report.known[axis] += not new
    if found.step is None and found.kind.content == "samples":
        report.stepless.add(found.source)
    if found.step is not None and found.kind.content == "samples":
        report.steps.setdefault(axis, set()).add(found.step)


def iter_parts(found: DumpFile, attempt: str, report: ImportReport) -> Iterator[FilePart]:
    """Yields a file that is written at once as one part, an append-only file in chunks of complete lines.

    Raises OSError.
    """
    with found.path.open("rb") as file:
        stamp = build_file_stamp(found.path.stat())
        if not found.kind.grows:
            if not is_complete_file(file, stamp[0], found.path.suffix):
                report.truncated.append(found.source)
            sha256, body = hash_open_file(file)
            yield FilePart(found, attempt, sha256, stamp[0], stamp, body)
            return
        offset = 0
        while lines := read_complete_lines(file, offset) or _read_last_line(file, offset, stamp[0]):
            yield FilePart(found, attempt, hashlib.sha256(lines).hexdigest(), len(lines), stamp, lines, offset)
            offset += len(lines)
        if offset < stamp[0]:
            report.truncated.append(found.source)


def _read_last_line(file: Any, offset: int, size: int) -> bytes:
    """Returns the bytes after the last line break if they are a complete line, else empty bytes."""
    if offset >= size or not is_complete_file(file, size):
        return b""
    file.seek(offset)
    return bytes(file.read(size - offset))


def _call_with_retries(call: Callable[[], T]) -> T:
    """Returns the result of `call`, which is repeated up to `TRIES` times if the server does not answer.

    Raises RetryLaterError, ActionRequiredError, UploadRejectedError.
    """
    for attempt in range(TRIES):
        try:
            return call()
        except ActionRequiredError:
            raise
        except RetryLaterError:
            if attempt == TRIES - 1:
                raise
            time.sleep(0.25 * 2.0**attempt)
    raise AssertionError("the loop returns or raises")


def _finish(target: UploadTarget, report: ImportReport) -> None:
    """Marks the run as finished, unless another attempt of it is running."""
    if not report.parts and not target.created:  # replayable steps alone do not show that the run has ended
        return
    try:
        if report.was_running and _call_with_retries(target.list_attempts) != [target.attempt]:
            print_message("The run is still being trained, so it is not marked as finished.")
            return
        _call_with_retries(target.finish_attempt)
    except (RetryLaterError, UploadRejectedError) as error:
        print_message(f"Can't mark the run as finished: {format_sentence(str(error))}")


def _print_table(report: ImportReport) -> None:
    rows = [("", "files", "known", "steps")]
    for axis in ("train", "eval", "metrics"):
        if report.files[axis]:
            steps = format_step_ranges(sorted(report.steps.get(axis, ())))
            rows.append((axis, f"{report.files[axis]:,}", f"{report.known[axis]:,}", steps))
    if artifact_row := import_artifacts.build_table_row(report.steps_to_replay):
        rows.append(artifact_row)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows if len(rows) > 1 else ():  # a tokenizer alone has no row
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip())
    sent = report.bytes + report.steps_to_replay.bytes
    print(f"{sent / 1e6:,.2f} MB" + ('. "known": already on the server, counted once.' if len(rows) > 1 else "."))
    for source in report.truncated:
        lost = "" if source.endswith(tuple(COMPLETENESS_CHECKS)) else " Its last line is ignored."
        print_message(f"{source} {describe_truncation(PurePath(source))}: is it still being written?{lost}")


def _print_skipped(found: ScanResult) -> None:
    for reason, sources in sorted(found.skipped.items()):
        examples = ", ".join(sources[:MAX_EXAMPLES]) + (", …" if len(sources) > MAX_EXAMPLES else "")
        print_message(f"Skipped {len(sources):,}: {reason} ({examples})")


def _wait(target: UploadTarget, report: ImportReport) -> int:
    """Waits until the server has indexed all dumps of the run, and prints the result. Returns the exit status."""
    try:
        _wait_until_indexed(target, report.steps_to_replay)
        status = import_artifacts.report_replayability(target, report.steps_to_replay)
        if not report.parts:
            return status
        dumps = [dump for dump in _iter_dumps(target) if _is_imported(dump, report)]
    except ActionRequiredError as error:
        print_message(f"Can't check whether everything is indexed: {format_sentence(str(error))}")
        return 0
    except (RetryLaterError, UploadRejectedError) as error:
        raise build_usage_error(error) from error
    print(f"Indexed: {_describe_indexed(dumps)}.")
    return max(status, _print_problems(dumps))


def _is_imported(dump: dict[str, Any], report: ImportReport) -> bool:
    """Whether the dump belongs to this import: sent, known, or one step of a file that the server split by step."""
    if (dump["source"], dump["sha256"]) in report.parts:
        return True
    return dump["step"] is not None and dump["source"] in report.stepless and dump["state"] != "superseded"


def _describe_indexed(dumps: Sequence[dict[str, Any]]) -> str:
    """Returns the row counts, for example `8 samples, 3 metric points`.

    Rows that add columns to the samples of other files are counted separately.
    """
    joins = {kind.format for kind in list_kinds() if kind.adds_columns}
    rows: Counter[str] = Counter()
    for dump in dumps:
        rows["point" if dump["step"] is None else "joined" if dump["format"] in joins else "sample"] += dump["rows"]
    words = [format_count(rows["sample"] or rows["joined"], "sample")]
    words += (
        [f"{format_count(rows['joined'], 'more row')} of the same samples"] if rows["sample"] and rows["joined"] else []
    )
    words += [format_count(rows["point"], "metric point")] if rows["point"] else []
    return ", ".join(words)


def _print_problems(dumps: Sequence[dict[str, Any]]) -> int:
    """Prints skipped rows, failed and unfinished files. Returns 1 if a file failed or is not indexed yet, else 0."""
    skipped: Counter[str] = Counter()
    for dump in dumps:
        skipped.update(dump["left_out"] or {})
    for reason, count in skipped.items():
        print(f"Skipped by the server, {format_count(count, 'row')}: {reason}")
    for dump in dumps:
        for line, reason in (dump["problems"] or [])[:MAX_EXAMPLES]:
            print_message(f"{dump['source']}, line {line}: {reason}")
    bad = [dump for dump in dumps if dump["state"] in ("failed", "unsafe")]
    for dump in bad:
        print_message(f"{dump['source']} {dump['state']}: {format_sentence(dump['message'] or 'no reason given')}")
    unfinished = [dump for dump in dumps if dump["state"] in ("received", "indexing")]
    if unfinished:
        print_message(f"{format_count(len(unfinished), 'file')} not indexed yet. Is a worker running?")
    return 1 if bad or unfinished else 0


def _wait_until_indexed(target: UploadTarget, steps: ArtifactImport) -> None:
    """Returns when nothing waits for indexing, or when nothing has changed for `STUCK_SECONDS`."""
    previous, changed_at = -1, time.monotonic()
    pause = 0.05
    while time.monotonic() - changed_at < STUCK_SECONDS:
        counts = _call_with_retries(lambda: target.count_dumps())
        waiting = counts.get("received", 0) + counts.get("indexing", 0)
        waiting += sum(
            artifact["state"] in import_artifacts.UNFINISHED_STATES
            for artifact in import_artifacts.load_sent_artifacts(target, steps)
        )
        if not waiting:
            return
        if waiting != previous:
            previous, changed_at = waiting, time.monotonic()
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause * 1.5)


def _iter_dumps(target: UploadTarget) -> Iterator[dict[str, Any]]:
    """Yields all dumps of the run, newest first."""
    page: int | None = 1
    while page:
        response = _call_with_retries(lambda number=page: target.list_dumps(number))  # type: ignore[misc]
        yield from response["results"]
        page = page + 1 if response["next"] else None
