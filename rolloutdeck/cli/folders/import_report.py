"""What `rolloutdeck import` prints: progress of the upload, the table of its result, and problems of the files."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from rolloutdeck import watch
from rolloutdeck.cli.common import format_count, format_sentence, print_message
from rolloutdeck.cli.folders.artifacts import ArtifactImport, build_table_row
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.trainer_api import list_kinds

MAX_EXAMPLES = 3
MENDED_LINE = "mended line"  # in `left_out` of a dump: rows that the server has read, but not all of it


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


def print_table(report: ImportReport) -> None:
    rows = [("", "files", "known", "steps")]
    for axis in ("train", "eval", "metrics"):
        if report.files[axis]:
            steps = format_step_ranges(sorted(report.steps.get(axis, ())))
            if axis in report.axes_by_row:
                steps = f"{steps}, others in the rows" if steps else "in the rows"
            rows.append((axis, f"{report.files[axis]:,}", f"{report.known[axis]:,}", steps))
    if artifact_row := build_table_row(report.steps_to_replay):
        rows.append(artifact_row)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows if len(rows) > 1 else ():  # a tokenizer alone has no row
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip())
    sent = report.bytes + report.steps_to_replay.bytes
    print(f"{sent / 1e6:,.2f} MB" + ('. "known": already on the server, counted once.' if len(rows) > 1 else "."))
    for source in report.truncated:
        lost = "" if source.endswith(tuple(watch.COMPLETENESS_CHECKS)) else " Its last line is ignored."
        print_message(f"{source} {watch.describe_truncation(PurePath(source))}: is it still being written?{lost}")


def print_skipped(scan: watch.ScanResult) -> None:
    for reason, sources in sorted(scan.skipped.items()):
        examples = ", ".join(sources[:MAX_EXAMPLES]) + (", …" if len(sources) > MAX_EXAMPLES else "")
        print_message(f"Skipped {len(sources):,}: {reason} ({examples})")


def describe_indexed(dumps: Sequence[dict[str, Any]]) -> str:
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


def print_problems(dumps: Sequence[dict[str, Any]], replayable_files: Collection[str]) -> int:
    """Prints skipped rows, failed and unfinished files. Returns 1 if a file failed or is not indexed yet, else 0.

    A trainer can load `replayable_files` (sha256), even if their samples can't be read.
    """
    skipped: Counter[str] = Counter()
    for dump in dumps:
        skipped.update(dump["left_out"] or {})
    if changed := skipped.pop(MENDED_LINE, 0):
        print(f"Read in part, {format_count(changed, 'row')}.")
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
