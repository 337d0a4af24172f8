"""`rolloutdeck import`: uploads the dump files of a finished run and waits until they are indexed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, TypeVar

from rolloutdeck import watch
from rolloutdeck.cli import import_artifacts
from rolloutdeck.cli.common import (
    connect,
    format_count,
    format_sentence,
    parse_file_args,
    print_message,
    refuse_redaction,
    require_run,
)
from rolloutdeck.cli.import_artifacts import ArtifactImport
from rolloutdeck.cli.watch import FILES_ATTEMPT
from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import format_column_names, format_step_ranges
from rolloutdeck.trainer_api import find_writer, list_kinds

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
    stepless: sources whose rows contain the step number. axes_by_row: the axes of such files.
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
    axes_by_row: set[str] = field(default_factory=set)
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
        size = f"{self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        text = f"{self.file:,} of {format_count(self.files, 'file')}, {size}"
        if self.is_terminal:
            print(f"\r[{'#' * round(30 * share):<30}] {text} ", end="", file=sys.stderr, flush=True)
        else:
            print_message(text)

    def end(self) -> None:
        if self.is_terminal:
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    refuse_redaction(settings)
    scan_options, artifact_options = parse_file_args(args)
    project, name = require_run(args, settings)
    scan = watch.scan_folders(args.paths, scan_options) if args.paths else watch.ScanResult()
    if artifact_options.mode == "never" and scan.steps:
        scan.skipped["replayable steps, because of --artifacts never"] = [str(step.path) for step in scan.steps]
        scan.steps = []
    for note in scan.notes:
        print_message(note)
    if not args.paths and not artifact_options.tokenizer:
        raise UsageError("Nothing to import. Give files or folders, or the run's tokenizer with --tokenizer.")
    if args.paths and not scan.files and not scan.steps:
        _print_skipped(scan)
        where = ", ".join(map(str, args.paths))
        hint = _build_table_hint(args.paths)
        raise UsageError(f"Nothing to import below {where}: no dump file of a known format.{hint}")
    framework = _find_framework(scan.files) or scan.trainer
    target = watch.UploadTarget(server, project, name, args.attempt or FILES_ATTEMPT, settings.run_id, framework)
    report = _upload(target, scan, artifact_options)
    _print_table(report)
    _print_skipped(scan)
    _finish(target, report)
    status = 0 if args.no_wait else _wait(target, report)
    for source, message in report.refused + report.steps_to_replay.problems:
        print_message(f"{source} was refused: {format_sentence(message)}")
    if target.url:
        print_message(target.url)
    return 1 if report.refused or report.steps_to_replay.problems else status


def _build_table_hint(paths: Sequence[Path]) -> str:
    """Returns how to import the first table among these files with --map; empty if there is no table."""
    files = islice((file for path in paths for file in watch.find_files(path)), MAX_PROBED_FILES)
    tables = (file for file in files if file.suffix in watch.TABLE_SUFFIXES and file.is_file())
    table = next((file for file in tables if file.stat().st_size), None)
    if table is None:
        return ""
    names = watch.read_file_head(table).list_table_columns(table.suffix)
    columns = f"; {table.name} has {format_column_names(names)}" if names else ""
    return f" For a table, name its columns: --map prompt=COLUMN,response=COLUMN{columns}."


def _find_framework(files: Sequence[watch.DumpFile]) -> str:
    """Returns the program that wrote the samples, else the one that wrote the first file; "" without files."""
    samples = [file for file in files if file.kind.content == "samples"]
    return next((find_writer(file.kind.format).name for file in [*samples, *files]), "")


def _upload(target: watch.UploadTarget, scan: watch.ScanResult, options: watch.ArtifactOptions) -> ImportReport:
    """Uploads all files. Raises UsageError if the server does not answer or refuses the run."""
    report, now = ImportReport(), options.mode == "now"
    sizes = [file.path.stat().st_size for file in scan.files]
    sizes += [(step.path / name).stat().st_size for step in scan.steps for name in step.files] if now else []
    bar = ProgressBar(sum(sizes), len(sizes))
    try:
        report.was_running = _call_with_retries(target.is_running)
        _call_with_retries(target.open_run)
        print_message(f"Importing {_describe_content(scan)} into {target.project}/{target.name}.")
        for file in scan.files:
            bar.file += 1
            _upload_file(target, file, report, bar)
        for step in import_artifacts.hash_steps(scan, options):
            at_once = now or step.role == "tokenizer"
            bar.file += len(step.files) if at_once else 0
            import_artifacts.send_artifact(target, step, at_once, report.steps_to_replay, _call_with_retries, bar.add)
    except (watch.RetryLaterError, watch.UploadRejectedError) as error:
        bar.end()
        sent = sum(report.files.values())
        also = f" {format_count(sent, 'file')} uploaded. Run the same command again to upload the rest." if sent else ""
        raise UsageError(f"{format_sentence(error)}{also}") from error
    bar.end()
    return report


def _describe_content(scan: watch.ScanResult) -> str:
    files = [format_count(len(scan.files), "file")] if scan.files else []
    steps = [f"{format_count(len(scan.steps), 'step')} to replay"] if scan.steps else []
    return " and ".join(files + steps) or "the tokenizer"


def _upload_file(target: watch.UploadTarget, dump: watch.DumpFile, report: ImportReport, bar: ProgressBar) -> None:
    """Uploads one file and adds the result to the report. Raises RetryLaterError, UsageError."""
    axis = "metrics" if dump.kind.content == "metrics" else dump.split
    new = False
    try:
        for part in watch.read_finished_file(dump, target.attempt, report.truncated.append):
            new |= _call_with_retries(lambda part=part: target.upload(part, bar.add))  # type: ignore[misc]
            report.bytes += part.size
            report.parts.add((dump.source, part.sha256))
    except watch.UploadRejectedError as error:
        report.refused.append((dump.source, str(error)))
        return
    except OSError as error:
        raise UsageError(f"{dump.path} can't be read: {error.strerror or error}.") from error
    report.files[axis] += 1
    report.known[axis] += not new
    if dump.kind.content == "samples":
        if dump.step is None:
            report.stepless.add(dump.source)
            report.axes_by_row.add(axis)
        else:
            report.steps.setdefault(axis, set()).add(dump.step)


def _call_with_retries(call: Callable[[], T]) -> T:
    """Returns the result of `call`, which is repeated up to `TRIES` times if the server does not answer.

    Raises RetryLaterError, ActionRequiredError, UploadRejectedError.
    """
    for attempt in range(TRIES):
        try:
            return call()
        except watch.ActionRequiredError:
            raise
        except watch.RetryLaterError:
            if attempt == TRIES - 1:
                raise
            time.sleep(0.25 * 2.0**attempt)
    raise AssertionError("the loop returns or raises")


def _finish(target: watch.UploadTarget, report: ImportReport) -> None:
    """Marks the run as finished, unless another attempt of it is running."""
    if not report.parts and not target.created:  # replayable steps alone do not show that the run has ended
        return
    try:
        if report.was_running and _call_with_retries(target.list_attempts) != [target.attempt]:
            print_message("The run is still being trained, so it is not marked as finished.")
            return
        _call_with_retries(target.finish_attempt)
    except (watch.RetryLaterError, watch.UploadRejectedError) as error:
        print_message(f"Can't mark the run as finished: {format_sentence(error)}")


def _print_table(report: ImportReport) -> None:
    rows = [("", "files", "known", "steps")]
    for axis in ("train", "eval", "metrics"):
        if report.files[axis]:
            steps = format_step_ranges(sorted(report.steps.get(axis, ())))
            if axis in report.axes_by_row:
                steps = f"{steps}, others in the rows" if steps else "in the rows"
            rows.append((axis, f"{report.files[axis]:,}", f"{report.known[axis]:,}", steps))
    if artifact_row := import_artifacts.build_table_row(report.steps_to_replay):
        rows.append(artifact_row)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows if len(rows) > 1 else ():  # a tokenizer alone has no row
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip())
    sent = report.bytes + report.steps_to_replay.bytes
    print(f"{sent / 1e6:,.2f} MB" + ('. "known": already on the server, counted once.' if len(rows) > 1 else "."))
    for source in report.truncated:
        lost = "" if source.endswith(tuple(watch.COMPLETENESS_CHECKS)) else " Its last line is ignored."
        print_message(f"{source} {watch.describe_truncation(PurePath(source))}: is it still being written?{lost}")


def _print_skipped(scan: watch.ScanResult) -> None:
    for reason, sources in sorted(scan.skipped.items()):
        examples = ", ".join(sources[:MAX_EXAMPLES]) + (", …" if len(sources) > MAX_EXAMPLES else "")
        print_message(f"Skipped {len(sources):,}: {reason} ({examples})")


def _wait(target: watch.UploadTarget, report: ImportReport) -> int:
    """Waits until the server has indexed all dumps of the run, and prints the result. Returns the exit status."""
    try:
        _wait_until_indexed(target, report.steps_to_replay)
        status = import_artifacts.report_replayability(target, report.steps_to_replay)
        if not report.parts:
            return status
        dumps = [dump for dump in _iter_dumps(target) if _is_imported(dump, report)]
    except watch.ActionRequiredError as error:
        print_message(f"Can't check whether everything is indexed: {format_sentence(error)}")
        return 0
    except (watch.RetryLaterError, watch.UploadRejectedError) as error:
        raise UsageError(format_sentence(error)) from error
    print(f"Indexed: {_describe_indexed(dumps)}.")
    recorded = {dump["step"] for dump in dumps if dump["source"] in report.stepless and dump["step"] is not None}
    if recorded:
        print(f"Steps recorded in the rows: {format_step_ranges(sorted(recorded))}.")
    return max(status, _print_problems(dumps, report.steps_to_replay.replayable_files))


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
    metrics = {kind.format for kind in list_kinds() if kind.content == "metrics"}
    rows: Counter[str] = Counter()
    for dump in dumps:
        is_point = dump["step"] is None or dump["format"] in metrics
        rows["point" if is_point else "joined" if dump["format"] in joins else "sample"] += dump["rows"]
    samples = rows["sample"] or rows["joined"]
    words = [format_count(samples, "sample")] if samples or not rows["point"] else []
    if rows["sample"] and rows["joined"]:
        words.append(f"{format_count(rows['joined'], 'more row')} of the same samples")
    if rows["point"]:
        words.append(format_count(rows["point"], "metric point"))
    return ", ".join(words)


def _print_problems(dumps: Sequence[dict[str, Any]], replayable_files: Collection[str]) -> int:
    """Prints skipped rows, failed and unfinished files. Returns 1 if a file failed or is not indexed yet, else 0.

    A trainer can load `replayable_files` (sha256), even if their samples can't be read.
    """
    skipped: Counter[str] = Counter()
    for dump in dumps:
        skipped.update(dump["left_out"] or {})
    for reason, count in skipped.items():
        print(f"Skipped by the server, {format_count(count, 'row')}: {reason}")
    for dump in dumps:
        for reason, lines in _group_problems(dump["problems"] or []).items():
            print_message(f"{dump['source']}, {_format_lines(lines)}: {reason}")
    bad = [dump for dump in dumps if dump["state"] in ("failed", "unsafe")]
    for dump in bad:
        is_replayable = dump["sha256"] in replayable_files
        result = "is replayable, but its samples can't be shown" if is_replayable else dump["state"]
        print_message(f"{dump['source']} {result}: {format_sentence(dump['message'] or 'no reason given')}")
    unfinished = sum(dump["state"] in ("received", "indexing") for dump in dumps)
    if unfinished:
        print_message(f"{format_count(unfinished, 'file')} not indexed yet. Is a worker running?")
    return 1 if bad or unfinished else 0


def _group_problems(problems: Sequence[tuple[int, str]]) -> dict[str, list[int]]:
    """Returns the lines of each reason. The server stores each reason of a file, and the first lines."""
    lines: dict[str, list[int]] = {}
    for line, reason in problems:
        lines.setdefault(reason, []).append(line)
    return lines


def _format_lines(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:MAX_EXAMPLES])) + (", …" if len(lines) > MAX_EXAMPLES else "")
    return f"line{'s' * (len(lines) > 1)} {shown}"


def _wait_until_indexed(target: watch.UploadTarget, steps: ArtifactImport) -> None:
    """Returns when nothing waits for indexing, or when nothing has changed for `STUCK_SECONDS`."""
    previous, changed_at, pause = -1, time.monotonic(), 0.05
    while time.monotonic() - changed_at < STUCK_SECONDS:
        counts = _call_with_retries(target.count_dumps)
        waiting = counts.get("received", 0) + counts.get("indexing", 0)
        waiting += import_artifacts.count_unfinished(target, steps)
        if not waiting:
            return
        if waiting != previous:
            previous, changed_at = waiting, time.monotonic()
        time.sleep(pause)
        pause = min(POLL_SECONDS, pause * 1.5)


def _iter_dumps(target: watch.UploadTarget) -> Iterator[dict[str, Any]]:
    """Yields all dumps of the run, newest first."""
    page: int | None = 1
    while page:
        response = _call_with_retries(lambda number=page: target.list_dumps(number))  # type: ignore[misc]
        yield from response["results"]
        page = page + 1 if response["next"] else None
