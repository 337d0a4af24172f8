"""Evaluates polars queries in processes that are killed at the limits of time and memory, or when the client leaves.

A thread that evaluates a regular expression cannot be interrupted. docs/decisions/query.md has the measurements.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from select import POLLIN, poll
from threading import Lock
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Final

from django.conf import settings
from django.utils.translation import gettext as _

from rollouts.errors import QueryLimitError, SearchInterruptedError, StorageUnavailableError
from rollouts.query.body_scan import scanner_process
from rollouts.query.body_scan.request import ScanRequest, get_scan_request
from rollouts.query.body_scan.slots import take_scan_slot

if TYPE_CHECKING:
    import polars as pl

MAX_IDLE_PROCESSES: Final = 2
POLL_SECONDS: Final = 0.05  # between two looks at whether the client left
REPETITION: Final = re.compile(r"(?<!\\)[{*+]")


class Scanner:
    """A process. `parent` is the process that started it: a fork must not use it."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        command = [sys.executable, "-P", str(Path(scanner_process.__file__))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin and self.process.stdout, "both are pipes"
        return self.process.stdin, self.process.stdout

    def stop(self) -> int:
        """Kills the process. Returns its exit status."""
        self.process.kill()
        status = self.process.wait()
        for stream in self.streams:
            try:
                stream.close()
            except OSError:  # the rest of a request cannot be written
                continue
        return status

    def request_frames(
        self, plans: Sequence[bytes], request: ScanRequest, may_be_slow: bool
    ) -> tuple[dict[str, Any], list[bytes]] | None:
        """Returns the answer; None if the process ended. Raises QueryLimitError and SearchCancelledError."""
        requests, answers = self.streams
        waiting = poll()  # `select` fails in a process with many connections
        waiting.register(answers, POLLIN)
        started = monotonic()
        used = request.used
        try:
            head = {"max_bytes": settings.MAX_QUERY_MEMORY_MB * 1_000_000, "may_be_slow": may_be_slow}
            scanner_process.write_message(requests, head, plans)
            while not waiting.poll(POLL_SECONDS * 1000):
                request.check_cancelled()
                request.used = used + monotonic() - started
                if request.remaining <= 0:
                    raise request.build_time_error()
            return scanner_process.read_message(answers)
        except BrokenPipeError:
            return None
        finally:
            request.used = used + monotonic() - started


idle: list[Scanner] = []
idle_lock = Lock()


def take_scanner() -> Scanner:
    with idle_lock:
        while idle:
            scanner = idle.pop()
            if scanner.parent == os.getpid() and scanner.process.poll() is None:
                return scanner
    return Scanner()


def keep_scanner(scanner: Scanner) -> None:
    with idle_lock:
        if len(idle) < MAX_IDLE_PROCESSES:
            idle.append(scanner)
            return
    scanner.stop()


def collect_frames(queries: Sequence[pl.LazyFrame], may_be_slow: bool = True) -> list[pl.DataFrame]:
    """Returns the result of each query. One that may be slow gives way to others after a moment.

    Raises QueryLimitError, TooManySearchesError, SearchCancelledError, FileNotFoundError and StorageUnavailableError.
    """
    import polars as pl

    if not queries:
        return []
    request = get_scan_request()
    plans = [query.serialize() for query in queries]
    with take_scan_slot(request):
        request.check_cancelled()
        if request.remaining <= 0:
            raise request.build_time_error()
        scanner = take_scanner()
        answer = None
        try:
            answer = scanner.request_frames(plans, request, may_be_slow)
        finally:
            if answer is None or answer[0]["slow"]:
                status = scanner.stop()
                keep_scanner(Scanner())  # it starts while nobody waits for it
            else:
                keep_scanner(scanner)
    if answer is None:
        raise build_end_error(status, request)
    head, frames = answer
    if head.get("missing"):
        raise FileNotFoundError(head["error"])
    if "error" in head:
        raise StorageUnavailableError(f"A body file cannot be read: {head['error']}.")
    return [pl.read_ipc_stream(io.BytesIO(frame), use_pyarrow=False) for frame in frames]


def build_end_error(status: int, request: ScanRequest) -> Exception:
    """Returns the error for a process that ended during a query."""
    if status != scanner_process.EXIT_MEMORY:
        return SearchInterruptedError(_("The search was interrupted. Try again."))
    message = _(
        "The search needed more than {megabytes} MB of memory after {seconds} s and was stopped. Search fewer steps, "
        "for example step:100..120, or use a plain text."
    )
    return QueryLimitError(message.format(megabytes=settings.MAX_QUERY_MEMORY_MB, seconds=f"{request.used:.1f}"), "q")


def collect_frame(query: pl.LazyFrame, pattern: str) -> pl.DataFrame:
    """Returns the result of a query that matches `pattern`. Only a pattern with repetitions can be slow: the automaton
    of any other one is not larger than the pattern, and another process would cost more than the query."""
    return collect_frames([query])[0] if REPETITION.search(pattern) else query.collect()
