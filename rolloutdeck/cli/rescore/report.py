"""Progress and the report at the end: counts, errors, and how the old and the new score agree."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from rolloutdeck.cli.common import clean_line, format_count, print_message, send_request
from rolloutdeck.lib import ServerClient

LINE_SECONDS = 0.5
MAX_ERRORS = 5
MAX_SOURCES = 20


class Progress:
    """Counts the results and shows a line while the command runs, if standard error is a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.results, self.started, self.shown = total, 0, time.monotonic(), 0.0
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, sample: str, error: str) -> None:
        self.results += 1
        if error:
            self.errors[error] += 1
            self.examples.setdefault(error, sample)

    def show(self, skipped: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self.shown < LINE_SECONDS:
            return
        self.shown = now
        rate = self.results / max(now - self.started, 1e-3)
        remaining = max(0, self.total - skipped - self.results)
        left = f", {remaining / rate:,.0f} s left" if rate > 0 and remaining else ""
        done, failed = skipped + self.results, self.errors.total()
        text = f"{done:,} of {self.total:,}, {rate:,.1f} a second{left}, {format_count(failed, 'error')}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        clear_line()

    def print_errors(self) -> None:
        for error, count in self.errors.most_common(MAX_ERRORS):
            text = clean_line(error)
            print_message(f"  {count:,} × {text}, for example sample {self.examples[error]}")
        if len(self.errors) > MAX_ERRORS:
            print_message(f"  and {format_count(len(self.errors) - MAX_ERRORS, 'other error')}")


def clear_line() -> None:
    """Clears the line of the progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)


def print_comparison(server: ServerClient, path: str, split: str, url: str) -> None:
    """Prints a table: old and new mean, and agreement, of each data source."""
    found = send_request(server, "GET", f"{path}comparison/", query={"split": split or None}).json()
    total, name = found["total"], found["rescore"]["name"]
    if not total["count"]:
        print_message(
            "No sample has both numbers, so there is nothing to compare. Does the query match scored samples?"
        )
        return
    rows: list[tuple[str, ...]] = [
        ("source", "samples", "score", name, "agree", "now correct", "now wrong", "correlation")
    ]
    rows += [format_source(source) for source in found["sources"][:MAX_SOURCES]]
    rows.append(format_source({**total, "source": "all"}))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    print_message(f"Compare: {url}")


def format_source(source: dict[str, Any]) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    agree = "-" if source["agreement"] is None else f"{100 * source['agreement']:.1f}%"
    return (
        clean_line(source["source"] or "-"),
        f"{source['count']:,}",
        number(source["old_mean"]),
        number(source["new_mean"]),
        agree,
        f"{source['gained']:,}",
        f"{source['lost']:,}",
        number(source["correlation"]),
    )
