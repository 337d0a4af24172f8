"""Worker processes for the user's function. A call that takes too long costs its process and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rolloutdeck.errors import UsageError

START_SECONDS = 600.0  # to import the user's module: torch on a network file system takes minutes
MAX_FAILED_STARTS = 3
READ_BYTES = 1 << 16
CHUNK_SECONDS = 0.1  # of calls that are sent at once, so that fast functions do not wait for their samples
MAX_CHUNK = 64
KILL_SECONDS = 5.0

Sample = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class FunctionInfo:
    name: str
    digest: str
    is_batch: bool


@dataclass(eq=False)
class Worker:
    """A process, and the samples that it has not answered. `deadline` is that of its start or of the current call."""

    process: subprocess.Popen[bytes]
    deadline: float
    is_ready: bool = False
    unanswered: deque[Sample] = field(default_factory=deque)
    unread: bytes = b""

    @property
    def is_busy(self) -> bool:
        """Whether it starts, or has samples."""
        return bool(self.unanswered) or not self.is_ready

    def fileno(self) -> int:
        assert self.process.stdout
        return self.process.stdout.fileno()

    def send(self, samples: list[Sample], deadline: float) -> None:
        assert self.process.stdin
        self.unanswered.extend(samples)
        self.deadline = deadline
        with contextlib.suppress(BrokenPipeError):  # its end is read next
            self.process.stdin.write(json.dumps([sample["arguments"] for sample in samples]).encode() + b"\n")
            self.process.stdin.flush()

    def read_messages(self) -> list[dict[str, Any]] | None:
        """Returns the complete messages; None at the end of the process."""
        data = os.read(self.fileno(), READ_BYTES)
        if not data:
            return None
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def kill(self) -> None:
        """Kills the process with all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe:
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_SECONDS)


class WorkerPool:
    """`run` yields (sample, result) in the order of completion. A sample is a dict with `arguments`."""

    def __init__(self, fn: str, *, workers: int, timeout: float, batch_size: int) -> None:
        self.fn, self.count, self.timeout, self.batch_size = fn, workers, timeout, batch_size
        self.workers: set[Worker] = set()
        self.selector = selectors.DefaultSelector()
        self.info: FunctionInfo | None = None
        self.call_seconds: float | None = None
        self.failed_starts = 0
        self.waiting: deque[Sample] = deque()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in list(self.workers):
            self._remove(worker)
        self.selector.close()

    def load(self) -> FunctionInfo:
        """Starts the processes and waits until one has loaded the function. Raises UsageError if it cannot be."""
        for _number in range(self.count):
            self._start()
        while self.info is None:
            for _sample, _result in self._wait():
                raise AssertionError("no sample was sent")
        return self.info

    def run(self, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        """Raises UsageError if the function cannot be loaded any more."""
        is_over = False
        while True:
            for worker in self.workers:
                if worker.is_ready and not worker.unanswered:
                    while not is_over and len(self.waiting) < self.chunk_size:
                        sample = next(samples, None)
                        is_over = sample is None
                        if sample is not None:
                            self.waiting.append(sample)
                    chunk = [self.waiting.popleft() for _ in range(min(self.chunk_size, len(self.waiting)))]
                    if chunk:
                        worker.send(chunk, time.monotonic() + self.timeout)
            if not self.waiting and is_over and not any(worker.unanswered for worker in self.workers):
                return
            yield from self._wait()
            for _missing in range(self.count - len(self.workers)):
                self._start()

    @property
    def chunk_size(self) -> int:
        """Samples that one process gets at once."""
        if self.info and self.info.is_batch:
            return self.batch_size
        if self.call_seconds is None:
            return 1
        return max(1, min(MAX_CHUNK, int(CHUNK_SECONDS / max(self.call_seconds, 1e-6))))

    def _start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "rolloutdeck.cli.rescore.worker", self.fn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        worker = Worker(process, time.monotonic() + START_SECONDS)
        self.workers.add(worker)
        self.selector.register(worker, selectors.EVENT_READ, worker)

    def _remove(self, worker: Worker) -> None:
        self.workers.discard(worker)
        self.selector.unregister(worker)
        worker.kill()

    def _wait(self) -> Iterator[tuple[Sample, Result]]:
        """Yields what the processes answered until the next event or deadline, also before it raises UsageError."""
        results: list[tuple[Sample, Result]] = []
        try:
            self._collect(results)
        except UsageError:
            yield from results
            raise
        yield from results

    def _collect(self, results: list[tuple[Sample, Result]]) -> None:
        """Adds to the results. The caller may take long with each one, so all that has arrived is read before a process
        counts as late."""
        deadlines = [worker.deadline for worker in self.workers if worker.is_busy]
        self._receive(max(0.0, min(deadlines, default=0.0) - time.monotonic()), results)
        while self._find_late() and self.selector.select(0.0):
            self._receive(0.0, results)
        for worker in self._find_late():
            limit = self.timeout if worker.is_ready else START_SECONDS
            results.extend(self._end(worker, f"it took longer than {limit:g} s"))

    def _receive(self, seconds: float, results: list[tuple[Sample, Result]]) -> None:
        """Reads from all processes that have written something; waits for the first one. Raises UsageError after it has
        read from all."""
        errors: list[UsageError] = []
        for key, _events in self.selector.select(seconds):
            try:
                results.extend(self._read(key.data))
            except UsageError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _read(self, worker: Worker) -> Iterator[tuple[Sample, Result]]:
        messages = worker.read_messages()
        if messages is None:
            yield from self._end(worker, f"its process ended ({describe_status(worker.process)})")
            return
        for message in messages:
            yield from self._handle(worker, message)
        if worker.unread:  # the call is over: its result is being written
            worker.deadline = time.monotonic() + self.timeout

    def _find_late(self) -> list[Worker]:
        now = time.monotonic()
        return [worker for worker in self.workers if worker.is_busy and now >= worker.deadline]

    def _handle(self, worker: Worker, message: dict[str, Any]) -> Iterator[tuple[Sample, Result]]:
        if "failed" in message:
            raise UsageError(message["failed"])
        if "digest" in message:
            info = FunctionInfo(message["name"], message["digest"], message["batch"])
            if self.info and self.info.digest != info.digest:
                raise UsageError(f"{self.fn} has changed while it ran. Start again, with another --name or --replace.")
            self.info, worker.is_ready, self.failed_starts = info, True, 0
            return
        now = time.monotonic()
        elapsed = now - (worker.deadline - self.timeout)
        self.call_seconds = elapsed if self.call_seconds is None else 0.8 * self.call_seconds + 0.2 * elapsed
        worker.deadline = now + self.timeout
        for result in message["results"]:
            yield worker.unanswered.popleft(), result

    def _end(self, worker: Worker, reason: str) -> Iterator[tuple[Sample, Result]]:
        """Removes the process. The sample of the current call gets an error, or the batch; the others wait again."""
        if not worker.is_ready:
            self.failed_starts += 1
            if self.info is None or self.failed_starts >= MAX_FAILED_STARTS:
                raise UsageError(f"{self.fn} could not be loaded: {reason}.")
        self._remove(worker)
        failed = len(worker.unanswered) if self.info and self.info.is_batch else min(1, len(worker.unanswered))
        for _number in range(failed):
            yield worker.unanswered.popleft(), {"error": reason}
        self.waiting.extendleft(reversed(worker.unanswered))
        worker.unanswered.clear()


def describe_status(process: subprocess.Popen[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS)
    status = process.returncode
    if status is None:
        return "it closed its output"
    return f"signal {-status}" if status < 0 else f"exit status {status}"
