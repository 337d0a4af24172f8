"""The run of a trainer process, and the thread that builds its rows from captured batches."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from rolloutdeck.client import Run, init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common.token_selection import TokenSelection

MAX_WAITING_STEPS = 3  # steps whose rows are not built yet; each keeps its batch in memory
MAX_WAITING_ROWS = 4096  # rows that wait in batches smaller than a step, e.g. of an evaluation
EXIT_SECONDS = 20.0

S = TypeVar("S", bound="TrainerSession")
_sessions: dict[Hashable, Any] = {}
_opening = threading.Lock()


class TrainerSession:
    """A run in one process. `selection` decides which rows keep their token fields.

    A subclass names its thread (`thread_name`), itself in the list of lost items (`log_name`), and what is lost if too
    many jobs wait (`overload_reason`).
    """

    thread_name: str
    log_name: str
    overload_reason: str

    def __init__(self, run: Run) -> None:
        self.run, self.pid = run, os.getpid()
        self.selection = TokenSelection.parse(Settings.from_environment().tokens, run.uid)
        self._jobs: queue.Queue[tuple[Callable[[], None], int]] = queue.Queue()
        self._submitted_rows = self._finished_rows = 0  # each is written by one thread only
        self._thread: threading.Thread | None = None
        atexit.register(self.flush, EXIT_SECONDS)  # before the run's own handler, registered earlier

    def submit(self, job: Callable[[], None], rows: int = MAX_WAITING_ROWS) -> None:
        """Runs `job`, which builds `rows` rows, in the session's thread. Counts it as lost if too many rows wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.thread_name, daemon=True)
            self._thread.start()
        waiting_rows = self._submitted_rows - self._finished_rows
        if self._jobs.qsize() >= MAX_WAITING_STEPS and waiting_rows + rows > MAX_WAITING_ROWS:
            self.count_lost(self.overload_reason)
            return
        self._submitted_rows += rows
        self._jobs.put_nowait((job, rows))

    def count_lost(self, reason: str, count: int = 1) -> None:
        """Counts `count` lost items on the run and logs a warning once."""
        self.run.lose(f"{self.log_name}: {reason}", count)
        patching.once_logger.log_once(
            reason, "Training goes on, but Rolloutdeck leaves out %s. It is counted on the run.", reason
        )

    def flush(self, seconds: float) -> None:
        """Waits until all jobs are done, at most `seconds`. A forked child does not have the thread and never waits."""
        deadline = time.monotonic() + seconds
        while self.pid == os.getpid() and self._jobs.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)

    def _work(self) -> None:
        while True:
            job, rows = self._jobs.get()
            patching.catch_errors(job)()
            self._finished_rows += rows
            self._jobs.task_done()
            del job


def get_session(key: Hashable, open_session: Callable[[], S]) -> S:
    """Returns the session of this process with this key, and opens one if there is none or its run has ended."""
    with _opening:
        session: S | None = _sessions.get(key)
        if session is None or session.run.finished or session.pid != os.getpid():
            session = _sessions[key] = open_session()
        return session


def open_trainer_run(framework: str, project: str, name: str, checkpoint_folder: str, **options: Any) -> Run:
    """Opens the run. ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN override the trainer's names.

    A relative folder of checkpoints is not used: it is another folder in each process.
    """
    settings = Settings.from_environment()
    return init(
        project=settings.project or project,
        name=settings.run or name,
        framework=framework,
        checkpoint_dir=checkpoint_folder if Path(checkpoint_folder).is_absolute() else None,
        **options,
    )
