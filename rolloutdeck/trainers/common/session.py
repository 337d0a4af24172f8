"""The run that a trainer's process belongs to, and a thread that makes rows of what the trainer held."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable

from rolloutdeck.client import Run
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common.token_selection import TokenSelection

MAX_WAITING_STEPS = 3  # steps whose rows wait to be made; each holds its batch in memory
MAX_WAITING_ROWS = 4096  # rows that wait in batches of less than a step, as an evaluation's
EXIT_SECONDS = 20.0


class TrainerSession:
    """One run in one process; `selection` says which of its rows keep their tokens. A trainer's own names its thread
    (`thread`), itself where something is counted as lost (`who`), and what is lost when too much waits (`late`)."""

    thread: str
    who: str
    late: str

    def __init__(self, run: Run) -> None:
        self.run, self.pid = run, os.getpid()
        self.selection = TokenSelection.read(Settings.from_environment().tokens, run.uid)
        self._jobs: queue.Queue[tuple[Callable[[], None], int]] = queue.Queue()
        self._given = self._made = 0  # rows; each is counted by one thread
        self._thread: threading.Thread | None = None
        atexit.register(self.flush, EXIT_SECONDS)  # before the run ends itself: that was registered sooner

    def later(self, job: Callable[[], None], rows: int = MAX_WAITING_ROWS) -> None:
        """Runs `job`, which makes so many rows, in our thread, or counts it as lost when too many wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.thread, daemon=True)
            self._thread.start()
        if self._jobs.qsize() >= MAX_WAITING_STEPS and self._given - self._made + rows > MAX_WAITING_ROWS:
            self.lose(self.late)
            return
        self._given += rows
        self._jobs.put_nowait((job, rows))

    def lose(self, what: str, count: int = 1) -> None:
        self.run.lose(f"{self.who}: {what}", count)
        patching.once_logger.log_once(
            what, "Training goes on, but Rolloutdeck leaves out %s. It is counted on the run.", what
        )

    def flush(self, seconds: float) -> None:
        """Waits until our thread has nothing left, at most `seconds`. A forked child does not have that thread."""
        end = time.monotonic() + seconds
        while self.pid == os.getpid() and self._jobs.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.02)

    def _work(self) -> None:
        while True:
            job, rows = self._jobs.get()
            patching.catch_errors(job)()
            self._made += rows
            self._jobs.task_done()
            del job
