"""`rolloutdeck import`: uploads the dump files of a finished run and waits until they are indexed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from rolloutdeck import watch
from rolloutdeck.cli.common import (
    call_with_retries,
    connect,
    format_count,
    format_sentence,
    parse_file_args,
    print_message,
    refuse_redaction,
    require_run,
)
from rolloutdeck.cli.folders import artifacts
from rolloutdeck.cli.folders.artifacts import ArtifactImport
from rolloutdeck.cli.folders.import_report import (
    ImportReport,
    ProgressBar,
    describe_indexed,
    print_problems,
    print_skipped,
    print_table,
)
from rolloutdeck.cli.folders.watch import choose_attempt
from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import format_column_names, format_step_ranges
from rolloutdeck.trainer_api import find_writer

T = TypeVar("T")

TRIES = 5
POLL_SECONDS = 0.5
STUCK_SECONDS = 120.0  # stop waiting if no dump was indexed for this long
MAX_PROBED_FILES = 1000  # files of a folder in which a table is searched


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    refuse_redaction(settings)
    scan_options, artifact_options = parse_file_args(args)
    project, name = require_run(args, settings)
    unread: list[OSError] = []
    scan = watch.scan_folders(args.paths, scan_options, unread.append) if args.paths else watch.ScanResult()
    if artifact_options.mode == "never" and scan.steps:
        scan.skipped["replayable steps, because of --artifacts never"] = [str(step.path) for step in scan.steps]
        scan.steps = []
    for note in scan.notes:
        print_message(note)
    if not args.paths and not artifact_options.tokenizer:
        raise UsageError("Nothing to import. Give files or folders, or the run's tokenizer with --tokenizer.")
    if args.paths and not scan.files and not scan.steps:
        print_skipped(scan)
        where = ", ".join(map(str, args.paths))
        hint = _build_table_hint(args.paths)
        raise UsageError(f"Nothing to import below {where}: no dump file of a known format.{hint}")
    framework = _find_framework(scan.files) or scan.trainer
    target = watch.UploadTarget(server, project, name, choose_attempt(args, settings), settings.run_id, framework)
    report = _upload(target, scan, artifact_options)
    print_table(report)
    print_skipped(scan)
    _finish(target, report)
    status = 0 if args.no_wait else _wait(target, report)
    for source, message in report.refused + report.steps_to_replay.problems:
        print_message(f"{source} is not imported: {format_sentence(message)}")
    if target.url:
        print_message(target.url)
    return 1 if report.refused or report.steps_to_replay.problems or unread else status


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
    sizes = [_read_size(file.path) for file in scan.files]
    sizes += [_read_size(step.path / name) for step in scan.steps for name in step.files] if now else []
    bar = ProgressBar(sum(sizes), len(sizes))
    try:
        report.was_running = _call_with_retries(target.is_running)
        _call_with_retries(target.open_run)
        print_message(f"Importing {_describe_content(scan)} into {target.project}/{target.name}.")
        for file in scan.files:
            bar.file += 1
            _upload_file(target, file, report, bar)
        for step in artifacts.hash_steps(scan, options):
            at_once = now or step.role == "tokenizer"
            bar.file += len(step.files) if at_once else 0
            artifacts.send_artifact(target, step, at_once, report.steps_to_replay, _call_with_retries, bar.add)
    except KeyboardInterrupt:
        bar.end()
        uploaded = format_count(sum(report.files.values()), "file")
        print_message(f"Stopped. {uploaded} uploaded. Run the same command again to upload the rest.")
        raise
    except (watch.RetryLaterError, watch.UploadRejectedError) as error:
        bar.end()
        sent = sum(report.files.values())
        also = f" {format_count(sent, 'file')} uploaded. Run the same command again to upload the rest." if sent else ""
        raise UsageError(f"{format_sentence(error)}{also}") from error
    bar.end()
    return report


def _read_size(path: Path) -> int:
    """Returns the bytes of a file; 0 if it is gone by now, which its upload reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
    except OSError as error:  # it may be gone by now; the other files are uploaded
        report.refused.append((dump.source, f"It can't be read: {error.strerror or error}."))
        return
    report.files[axis] += 1
    report.known[axis] += not new
    if dump.kind.content == "samples":
        if dump.step is None:
            report.stepless.add(dump.source)
            report.axes_by_row.add(axis)
        else:
            report.steps.setdefault(axis, set()).add(dump.step)


def _call_with_retries(call: Callable[[], T]) -> T:
    """Returns the result of `call`, which is repeated if the server does not answer.

    Raises RetryLaterError, ActionRequiredError, UploadRejectedError.
    """
    return call_with_retries(call, TRIES, 0.25)


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


def _wait(target: watch.UploadTarget, report: ImportReport) -> int:
    """Waits until the server has indexed all dumps of the run, and prints the result. Returns the exit status."""
    try:
        _wait_until_indexed(target, report.steps_to_replay)
        status = _call_with_retries(lambda: artifacts.report_replayability(target, report.steps_to_replay))
        if not report.parts:
            return status
        dumps = [dump for dump in _iter_dumps(target) if _is_imported(dump, report)]
    except watch.ActionRequiredError as error:
        print_message(f"Can't check whether everything is indexed: {format_sentence(error)}")
        return 0
    except (watch.RetryLaterError, watch.UploadRejectedError) as error:
        raise UsageError(format_sentence(error)) from error
    print(f"Indexed: {describe_indexed(dumps)}.")
    recorded = {dump["step"] for dump in dumps if dump["source"] in report.stepless and dump["step"] is not None}
    if recorded:
        print(f"Steps recorded in the rows: {format_step_ranges(sorted(recorded))}.")
    return max(status, print_problems(dumps, report.steps_to_replay.replayable_files))


def _is_imported(dump: dict[str, Any], report: ImportReport) -> bool:
    """Whether the dump belongs to this import: sent, known, or one step of a file that the server split by step."""
    if (dump["source"], dump["sha256"]) in report.parts:
        return True
    return dump["step"] is not None and dump["source"] in report.stepless and dump["state"] != "superseded"


def _wait_until_indexed(target: watch.UploadTarget, steps: ArtifactImport) -> None:
    """Returns when nothing waits for indexing, or when nothing has changed for `STUCK_SECONDS`."""
    previous, changed_at, pause = -1, time.monotonic(), 0.05
    while time.monotonic() - changed_at < STUCK_SECONDS:
        counts = _call_with_retries(target.count_dumps)
        waiting = counts.get("received", 0) + counts.get("indexing", 0)
        waiting += _call_with_retries(lambda: artifacts.count_unfinished(target, steps))
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
