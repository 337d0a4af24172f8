"""The process that evaluates polars queries for `scanner.py`, which can kill it. It imports only polars.

Messages in both directions are a line of JSON, then as many bytes as `sizes` says. This file runs as a script.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

CHECK_SECONDS: Final = 0.05
SLOW_SECONDS: Final = 0.5  # of CPU; then a regular expression gives way to the queries of other people
SLOW_PRIORITY: Final = 10  # as for `nice`
EXIT_MEMORY: Final = 77


class Watch(threading.Thread):
    """Ends the process if it takes too much memory or its parent ended, and lowers the priority of a slow query."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.parent = os.getppid()
        self.started: float | None = None  # CPU time at which a query that may be slow began
        self.max_bytes = 0
        self.is_slow = False

    def run(self) -> None:
        while True:
            time.sleep(CHECK_SECONDS)
            if os.getppid() != self.parent:
                os._exit(0)
            if self.max_bytes and read_memory() > self.max_bytes:
                os._exit(EXIT_MEMORY)
            if self.started is not None and not self.is_slow and time.process_time() - self.started > SLOW_SECONDS:
                self.is_slow = True
                lower_priority()


def read_memory(field: str = "RssAnon") -> int:
    """Returns the bytes that only this process uses, or another field; 0 without /proc. Mapped files do not count."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{field}:")), 0)


def lower_priority() -> None:
    """Linux has a priority per thread."""
    threads = Path("/proc/self/task")
    for name in [path.name for path in threads.iterdir()] if threads.exists() else ["0"]:
        try:
            os.setpriority(os.PRIO_PROCESS, int(name), SLOW_PRIORITY)
        except OSError:  # the thread ended, or has a lower priority already
            continue


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Returns the head and its parts; None at the end of the stream."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    parts = [stream.read(size) for size in head["sizes"]]
    return (head, parts) if [len(part) for part in parts] == head["sizes"] else None


def write_message(stream: IO[bytes], head: dict[str, Any], parts: Sequence[bytes]) -> None:
    stream.write(json.dumps({**head, "sizes": [len(part) for part in parts]}).encode() + b"\n")
    for part in parts:
        stream.write(part)
    stream.flush()


def evaluate(plans: Sequence[bytes]) -> list[bytes]:
    import polars as pl

    frames = pl.collect_all([pl.LazyFrame.deserialize(io.BytesIO(plan)) for plan in plans], engine="streaming")
    results = []
    for frame in frames:
        buffer = io.BytesIO()
        frame.write_ipc_stream(buffer)  # is read in a tenth of the time of `write_ipc`
        results.append(buffer.getvalue())
    return results


def main() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write into the answers
    import polars  # noqa: F401  # before the first query, whose time counts

    watch = Watch()
    watch.start()
    while message := read_message(requests):
        head, plans = message
        watch.max_bytes = head["max_bytes"]
        watch.started = time.process_time() if head["may_be_slow"] else None
        try:
            results = evaluate(plans)
        except Exception as error:  # the parent raises it again
            answer: dict[str, Any] = {"error": str(error), "missing": isinstance(error, FileNotFoundError)}
            results = []
        else:
            answer = {}
        watch.started = None
        write_message(answers, {**answer, "slow": watch.is_slow}, results)
        if watch.is_slow:  # without privileges a process cannot raise its priority again
            return


if __name__ == "__main__":
    main()
