"""`rolloutdeck import`: brings the dump files of a finished run to the server and waits until they are indexed."""

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
SECONDS_BETWEEN_LOOKS = 0.5
STUCK_SECONDS = 120.0  # without any dump being indexed
EXAMPLES = 3
MAX_PROBED_FILES = 1000  # files of a folder, for one that is a table


@dataclass
class ImportReport:
    """What happened. `refused`: (source, the server's sentence); `pieces`: what was sent or known, for the wait;
    `stepless`: sources whose rows say their steps;
    `others_run`: the run was being trained when the import began."""

    files: Counter[str] = field(default_factory=Counter)
    steps: dict[str, set[int]] = field(default_factory=dict)
    known: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    pieces: set[tuple[str, str]] = field(default_factory=set)
    stepless: set[str] = field(default_factory=set)
    torn: list[str] = field(default_factory=list)
    others_run: bool = False
    steps_to_replay: ArtifactImport = field(default_factory=ArtifactImport)


class ProgressBar:
    """How far it is: a line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, files: int) -> None:
        self.total, self.files, self.done, self.file = max(total, 1), files, 0, 0
        self.live, self.shown_at = sys.stderr.isatty(), time.monotonic()

    def add(self, size: int) -> None:
        self.done += size
        self.show()

    def show(self) -> None:
        now = time.monotonic()
        if now - self.shown_at < (0.1 if self.live else 5.0):
            return
        self.shown_at = now
        share = min(1.0, self.done / self.total)
        text = (
            f"{self.file:,} of {format_count(self.files, 'file')}, {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        )
        if self.live:
            print(f"\r[{'#' * round(30 * share):<30}] {text} ", end="", file=sys.stderr, flush=True)
        else:
            print_message(text)

    def end(self) -> None:
        if self.live:
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr, flush=True)


def main(args: argparse.Namespace) -> int:
    settings, choice, keeping = load_settings(args), parse_scan_options(args), parse_artifact_options(args, "now")
    project, name = require_run(args, settings)
    found = _kept(scan_folders(args.paths, choice) if args.paths else ScanResult(), keeping)
    for note in found.notes:
        print_message(note)
    if not args.paths and not keeping.tokenizer:
        raise UsageError("Say what to import: files or folders, or the run's tokenizer with --tokenizer.")
    if args.paths and not found.files and not found.steps:
        _left_out(found)
        where = ", ".join(map(str, args.paths))
        raise UsageError(f"Nothing to import below {where}: no dump file of a known format.{_as_table(args.paths)}")
    framework = find_writer(found.files[0].kind.format).name if found.files else found.trainer
    target = UploadTarget(
        build_server_client(settings), project, name, args.attempt or FILES_ATTEMPT, settings.run_id, framework
    )
    report = _send(target, found, keeping)
    _table(report)
    _left_out(found)
    _finish(target, report)
    status = 0 if args.no_wait else _wait(target, report)
    for source, message in report.refused + report.steps_to_replay.problems:
        print_message(f"{source} was refused: {format_sentence(message)}")
    if target.url:
        print_message(target.url)
    return 1 if report.refused or report.steps_to_replay.problems else status


def _as_table(paths: Sequence[Path]) -> str:
    """How to have the first table among these files taken, which does not look like generations; empty for none."""
    files = islice((file for path in paths for file in find_files(path)), MAX_PROBED_FILES)
    table = next(
        (file for file in files if file.suffix in TABLE_SUFFIXES and file.is_file() and file.stat().st_size), None
    )
    if table is None:
        return ""
    names = read_table_columns(table, read_file_head(table))
    has = f"; {table.name} has {format_column_names(names)}" if names else ""
    return f" Of a table say which columns are which: --map prompt=COLUMN,response=COLUMN{has}."


def _kept(found: ScanResult, keeping: ArtifactOptions) -> ScanResult:
    if keeping.mode == "never" and found.steps:
        found.skipped["steps that can be replayed, as --artifacts never says"] = [str(one.path) for one in found.steps]
        found.steps = []
    return found


def _send(target: UploadTarget, found: ScanResult, keeping: ArtifactOptions) -> ImportReport:
    report, now = ImportReport(), keeping.mode == "now"
    sizes = [one.path.stat().st_size for one in found.files]
    sizes += [(one.path / name).stat().st_size for one in found.steps for name in one.files] if now else []
    bar = ProgressBar(sum(sizes), len(sizes))
    try:
        report.others_run = _patiently(target.is_running)
        _patiently(target.open_run)
        print_message(f"Importing {_what(found)} into {target.project}/{target.name}.")
        for one in found.files:
            bar.file += 1
            _send_file(target, one, report, bar)
        for step in import_artifacts.hash_steps(found, keeping):
            at_once = now or step.role == "tokenizer"
            bar.file += len(step.files) if at_once else 0
            import_artifacts.send_artifact(target, step, at_once, report.steps_to_replay, _patiently, bar.add)
    except (RetryLaterError, UploadRejectedError) as error:
        bar.end()
        sent = sum(report.files.values())
        also = f" {format_count(sent, 'file')} arrived; the same command sends the rest." if sent else ""
        raise UsageError(f"{build_usage_error(error)}{also}") from error
    bar.end()
    return report


def _what(found: ScanResult) -> str:
    files = [format_count(len(found.files), "file")] if found.files else []
    steps = [f"{format_count(len(found.steps), 'step')} to replay"] if found.steps else []
    return " and ".join(files + steps) or "the tokenizer"


def _send_file(target: UploadTarget, found: DumpFile, report: ImportReport, bar: ProgressBar) -> None:
    axis = "metrics" if found.kind.holds == "metrics" else found.split
    new = False
    try:
        for piece in pieces(found, target.attempt, report):
            new |= _patiently(lambda sent=piece: target.upload(sent, bar.add))  # type: ignore[misc]
            report.bytes += piece.size
            report.pieces.add((found.source, piece.sha256))
    except UploadRejectedError as error:
        report.refused.append((found.source, str(error)))
        return
    except OSError as error:
        raise UsageError(f"{found.path} can't be read: {error.strerror or error}.") from error
    report.files[axis] += 1
    report.known[axis] += not new
    if found.step is None and found.kind.holds == "samples":
        report.stepless.add(found.source)
    if found.step is not None and found.kind.holds == "samples":
        report.steps.setdefault(axis, set()).add(found.step)


def pieces(found: DumpFile, attempt: str, report: ImportReport) -> Iterator[FilePart]:
    """A whole file as one piece, a growing one in chunks of whole lines. Raises OSError."""
    with found.path.open("rb") as file:
        stamp = build_file_stamp(found.path.stat())
        if found.kind.arrives == "whole":
            if not is_complete_file(file, stamp[0], found.path.suffix):
                report.torn.append(found.source)
            sha256, body = hash_open_file(file)
            yield FilePart(found, attempt, sha256, stamp[0], stamp, body)
            return
        offset = 0
        while lines := read_complete_lines(file, offset) or _last_line(file, offset, stamp[0]):
            yield FilePart(found, attempt, hashlib.sha256(lines).hexdigest(), len(lines), stamp, lines, offset)
            offset += len(lines)
        if offset < stamp[0]:
            report.torn.append(found.source)


def _last_line(file: Any, offset: int, size: int) -> bytes:
    """What comes after the last line break, if it is a whole line all the same."""
    if offset >= size or not is_complete_file(file, size):
        return b""
    file.seek(offset)
    return bytes(file.read(size - offset))


def _patiently(call: Callable[[], T]) -> T:
    """Tries again a few times when the server does not answer. Raises RetryLaterError, ActionRequiredError,
    UploadRejectedError."""
    for tried in range(TRIES):
        try:
            return call()
        except ActionRequiredError:
            raise
        except RetryLaterError:
            if tried == TRIES - 1:
                raise
            time.sleep(0.25 * 2.0**tried)
    raise AssertionError("the loop returns or raises")


def _finish(target: UploadTarget, report: ImportReport) -> None:
    """Nothing more comes, so the run has ended, unless another launch of it lives."""
    if not report.pieces and not target.created:  # files of steps to replay say nothing about how the run does
        return
    try:
        if report.others_run and _patiently(target.list_attempts) != [target.attempt]:
            print_message("The run is being trained, so it stays open.")
            return
        _patiently(target.finish_attempt)
    except (RetryLaterError, UploadRejectedError) as error:
        print_message(f"The run could not be marked as finished: {format_sentence(str(error))}")


def _table(report: ImportReport) -> None:
    rows = [("", "files", "known", "steps")]
    for axis in ("train", "eval", "metrics"):
        if report.files[axis]:
            steps = format_step_ranges(sorted(report.steps.get(axis, ())))
            rows.append((axis, f"{report.files[axis]:,}", f"{report.known[axis]:,}", steps))
    if kept := import_artifacts.build_table_row(report.steps_to_replay):
        rows.append(kept)
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for row in rows if len(rows) > 1 else ():  # of a tokenizer alone there is nothing to tell
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip())
    sent = report.bytes + report.steps_to_replay.bytes
    print(f"{sent / 1e6:,.2f} MB" + ('; "known" were there before and are counted once.' if len(rows) > 1 else "."))
    for source in report.torn:
        lost = "" if source.endswith(tuple(COMPLETENESS_CHECKS)) else " Its last line does not count."
        print_message(f"{source} {describe_truncation(PurePath(source))}: is it still being written?{lost}")


def _left_out(found: ScanResult) -> None:
    for reason, sources in sorted(found.skipped.items()):
        shown = ", ".join(sources[:EXAMPLES]) + (", …" if len(sources) > EXAMPLES else "")
        print_message(f"Left out {len(sources):,}: {reason} ({shown})")


def _wait(target: UploadTarget, report: ImportReport) -> int:
    """Until the server has indexed everything of the run; says how many samples that gave and what failed."""
    try:
        _until_indexed(target, report.steps_to_replay)
        status = import_artifacts.report_replayability(target, report.steps_to_replay)
        if not report.pieces:
            return status
        dumps = [dump for dump in _dumps(target) if _is_of(dump, report)]
    except ActionRequiredError as error:
        print_message(f"Whether all is indexed was not looked at: {format_sentence(str(error))}")
        return 0
    except (RetryLaterError, UploadRejectedError) as error:
        raise build_usage_error(error) from error
    print(f"Indexed: {_describe_indexed(dumps)}.")
    return max(status, _problems(dumps))


def _is_of(dump: dict[str, Any], report: ImportReport) -> bool:
    """Whether it was sent or known, or is one step of a file of several, which the server took apart."""
    if (dump["source"], dump["sha256"]) in report.pieces:
        return True
    return dump["step"] is not None and dump["source"] in report.stepless and dump["state"] != "superseded"


def _describe_indexed(dumps: Sequence[dict[str, Any]]) -> str:
    """How much there is of what; rows that join the samples of other files are counted apart."""
    joins = {kind.format for kind in list_kinds() if kind.joins}
    rows: Counter[str] = Counter()
    for dump in dumps:
        rows["point" if dump["step"] is None else "joined" if dump["format"] in joins else "sample"] += dump["rows"]
    words = [format_count(rows["sample"] or rows["joined"], "sample")]
    words += (
        [f"{format_count(rows['joined'], 'more row')} of the same ones"] if rows["sample"] and rows["joined"] else []
    )
    words += [format_count(rows["point"], "metric point")] if rows["point"] else []
    return ", ".join(words)


def _problems(dumps: Sequence[dict[str, Any]]) -> int:
    left_out: Counter[str] = Counter()
    for dump in dumps:
        left_out.update(dump["left_out"] or {})
    for reason, count in left_out.items():
        print(f"Left out by the server, {format_count(count, 'row')}: {reason}")
    for dump in dumps:
        for line, reason in (dump["problems"] or [])[:EXAMPLES]:
            print_message(f"{dump['source']}, line {line}: {reason}")
    bad = [dump for dump in dumps if dump["state"] in ("failed", "unsafe")]
    for dump in bad:
        print_message(f"{dump['source']} {dump['state']}: {format_sentence(dump['message'] or 'no reason given')}")
    unfinished = [dump for dump in dumps if dump["state"] in ("received", "indexing")]
    if unfinished:
        print_message(f"{format_count(len(unfinished), 'file')} not indexed yet; is a worker running?")
    return 1 if bad or unfinished else 0


def _until_indexed(target: UploadTarget, steps: ArtifactImport) -> None:
    """Ends early when nothing has moved for `STUCK_SECONDS`."""
    left, moved = -1, time.monotonic()
    pause = 0.05
    while time.monotonic() - moved < STUCK_SECONDS:
        waiting = _patiently(lambda: target.count_dumps())
        now_left = waiting.get("received", 0) + waiting.get("indexing", 0)
        now_left += sum(
            one["state"] in import_artifacts.UNFINISHED_STATES
            for one in import_artifacts.load_sent_artifacts(target, steps)
        )
        if not now_left:
            return
        if now_left != left:
            left, moved = now_left, time.monotonic()
        time.sleep(pause)
        pause = min(SECONDS_BETWEEN_LOOKS, pause * 1.5)


def _dumps(target: UploadTarget) -> Iterator[dict[str, Any]]:
    page: int | None = 1
    while page:
        found = _patiently(lambda number=page: target.list_dumps(number))  # type: ignore[misc]
        yield from found["results"]
        page = page + 1 if found["next"] else None
