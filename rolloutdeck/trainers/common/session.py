"""The run of a trainer process, and the thread that builds its rows from captured batches."""

from __future__ import annotations

import atexit
import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rolloutdeck.client import Run, init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common.equal_samples import EqualSampleMarker
from rolloutdeck.trainers.common.token_rows import TokenRow, TokenSample, add_token_fields, build_text_rows
from rolloutdeck.trainers.common.token_selection import TokenBudget, TokenSelection

MAX_WAITING_STEPS = 3  # steps whose rows are not built yet; each keeps its batch in memory
MAX_WAITING_ROWS = 4096  # rows that wait in batches smaller than a step, e.g. of an evaluation
EXIT_SECONDS = 20.0
MAX_JOB_SECONDS = 60.0  # at the end of a run: decoding a step of 4,096 long responses takes half of it
LIVE_SECONDS = 5.0  # between two deliveries of samples that arrive one by one

S = TypeVar("S", bound="TrainerSession")
TextRows = tuple[Sequence[TokenSample], list[TokenRow]]
Collected = tuple[Callable[[], Sequence[TokenSample]], int]  # builds samples, and about how many
_sessions: dict[Hashable, Any] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class Job:
    """What `TrainerSession.submit` takes."""

    run: Callable[[], None]
    rows: int | None
    reason: str | None

    @property
    def weight(self) -> int:
        """The number of rows that the job counts for while it waits."""
        return MAX_WAITING_ROWS if self.rows is None else self.rows


class TrainerSession:
    """A run in one process. `selection` decides which rows keep their token fields.

    A subclass can name its thread (`thread_name`), itself in the list of lost items (`log_name`), and what is lost if
    too many jobs wait (`overload_reason`): rows, or steps if its jobs have no number of rows.
    """

    thread_name = "rolloutdeck-rows"
    log_name = "plug-in"
    overload_reason = "rows of steps that could not be built in time"
    failure_reason = "rows that could not be built"
    step_failure_reason = "steps that could not be recorded completely"  # of jobs without a number of rows
    capture_reason = "batches that could not be copied from the trainer"
    end_reason = "rows that were not built before the end"

    def __init__(self, run: Run) -> None:
        self.run, self.pid = run, os.getpid()
        self.selection = TokenSelection.parse(Settings.from_environment().tokens, run.uid)
        self._budget = TokenBudget(self.selection)
        self._equal_samples = EqualSampleMarker()
        self._collected: dict[Any, list[Collected]] = {}
        self._collecting = threading.Lock()
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._submitted_rows = self._finished_rows = 0  # each is written by one thread only
        self._thread: threading.Thread | None = None
        self._job: Job | None = None  # that runs now
        self._is_ended = False
        atexit.register(self.end_jobs)  # before the run's own handler, registered earlier

    def submit(self, run: Callable[[], None], rows: int | None = None, reason: str | None = None) -> None:
        """Calls `run`, which builds `rows` rows, in the session's thread. None: a step of unknown size.

        Counts the rows, or the step, as lost if too many rows wait or `run` raises. `reason`: what is lost if it is
        neither; "" if nothing is, because a later job records the same.
        """
        self._start_thread()
        job = Job(run, rows, reason)
        waiting_rows = self._submitted_rows - self._finished_rows
        if self._jobs.qsize() >= MAX_WAITING_STEPS and waiting_rows + job.weight > MAX_WAITING_ROWS:
            self._count_lost_job(job, self.overload_reason)
            return
        self._submitted_rows += job.weight
        self._jobs.put_nowait(job)

    def submit_samples(
        self, build_samples: Callable[[], Sequence[TokenSample]], rows: int, step: int, split: str, **options: Any
    ) -> None:
        """Records about `rows` samples, which `build_samples` returns in the session's thread.

        `options` are those of `Run.log_samples`. May be called several times for a step. Counts samples as lost if
        they cannot be built.
        """
        self.submit(partial(self._log_rows, [(build_samples, rows)], step, split, options), rows)

    def _log_rows(self, calls: Sequence[Collected], step: int, split: str, options: dict[str, Any]) -> None:
        samples: list[TokenSample] = []
        rows: list[TokenRow] = []
        lost = 0
        for build_samples, count in calls:
            built = patching.catch_errors(wrap_builder(build_samples))()
            if built is None:
                lost += count
                continue
            samples += built[0]
            rows += built[1]
        if rows:
            add_token_fields(rows, samples, self._budget, split, step)
            self.mark_equal_rows(rows, step, split, **options)
            self.run.log_samples(rows, step, split, **options)
        if lost:  # at the end: if logging fails, all rows of the job are counted
            self.count_lost(self.failure_reason, lost)

    def mark_equal_rows(self, rows: Sequence[dict[str, Any]], step: int, split: str, **options: Any) -> None:
        """Marks rows that are equal to rows of an earlier delivery of the step, see `EqualSampleMarker`. Must be
        called in the session's thread."""
        self._equal_samples.mark_rows(rows, (step, split, *options.items()))

    def collect_samples(
        self, build_samples: Callable[[], Sequence[TokenSample]], rows: int, step: int, split: str, **options: Any
    ) -> None:
        """Like `submit_samples`, for samples that arrive one by one: those of a few seconds are one delivery."""
        self._start_thread()  # at the end of the process, when `flush` needs it, no thread can be started
        with self._collecting:
            if not self._collected:
                timer = threading.Timer(LIVE_SECONDS, self._submit_collected)
                timer.daemon = True
                timer.start()
            key = (step, split, tuple(options.items()))
            self._collected.setdefault(key, []).append((build_samples, rows))

    def _start_thread(self) -> None:
        with self._collecting:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self.thread_name, daemon=True)
                thread.start()
                self._thread = thread

    def _submit_collected(self) -> None:
        with self._collecting:
            collected, self._collected = self._collected, {}
        for (step, split, options), calls in collected.items():
            job = partial(self._log_rows, calls, step, split, dict(options))
            self.submit(job, sum(rows for _, rows in calls))

    def close(self, outcome: str) -> None:
        """Waits for the rows in memory and ends the run: `finished` or `failed`."""
        self.end_jobs()
        self.run.finish(outcome, timeout=EXIT_SECONDS)

    def count_lost(self, reason: str, count: int = 1, details: str = "") -> None:
        """Counts `count` lost items on the run and logs a warning once.

        The run shows the counts by `reason`: it is short, and the same for all items. `details` are only logged.
        """
        self.run.lose(f"{self.log_name}: {reason}", count)
        message = "Training continues, but Rolloutdeck leaves out %s%s. It is counted on the run."
        patching.once_logger.log_once(reason + details, message, reason, details)

    @contextmanager
    def count_capture_errors(self) -> Iterator[None]:
        """Counts a batch as lost if the block, which copies it from the trainer, raises."""
        try:
            yield
        except Exception:
            self.count_lost(self.capture_reason)
            raise

    def flush(self, seconds: float) -> None:
        """Waits until all jobs are done, at most `seconds` for each. A forked child does not have the thread and never
        waits."""
        if self.pid != os.getpid():
            return
        self._submit_collected()
        left, deadline = 0, 0.0
        while unfinished := self._jobs.unfinished_tasks:
            if unfinished != left:
                left, deadline = unfinished, time.monotonic() + seconds
            if time.monotonic() >= deadline:
                return
            time.sleep(0.02)

    def end_jobs(self) -> None:
        """Waits for the rows in memory before the run ends. Counts those as lost that are not built in time."""
        if self.pid != os.getpid() or self._is_ended:
            return
        self.flush(MAX_JOB_SECONDS)
        running = self._job
        jobs = [running] if running else []
        with suppress(queue.Empty):
            while True:
                jobs.append(self._jobs.get_nowait())
                self._jobs.task_done()
        self._is_ended = running is not None  # which may never end, and is waited for once
        for job in jobs:
            self._count_lost_job(job, self.end_reason)

    def _work(self) -> None:
        while True:
            job = self._job = self._jobs.get()
            reason = self.step_failure_reason if job.rows is None else self.failure_reason
            patching.catch_errors(job.run, partial(self._count_lost_job, job, reason))()
            self._finished_rows += job.weight
            self._job = None
            self._jobs.task_done()
            del job

    def _count_lost_job(self, job: Job, reason: str) -> None:
        reason = reason if job.reason is None else job.reason
        if reason:
            self.count_lost(reason, 1 if job.rows is None else job.rows)


def wrap_builder(build_samples: Callable[[], Sequence[TokenSample]]) -> Callable[[], TextRows]:
    """Returns a function that builds samples and rows. It has the name of the builder, for the log."""

    def build() -> TextRows:
        return build_text_rows(build_samples)

    return functools.update_wrapper(build, build_samples)


def get_session(key: Hashable, open_session: Callable[[], S]) -> S:
    """Returns the session of this process with this key, and opens one if there is none or its run has ended."""
    with _opening:
        session: S | None = _sessions.get(key)
        has_ended = session is not None and session.run.finished and not session.run.is_disabled
        if session is None or has_ended or session.pid != os.getpid():
            session = _sessions[key] = open_session()
        return session


def open_trainer_run(framework: str, project: str, name: str, checkpoint_folder: str, **options: Any) -> Run:
    """Opens the run. ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN override the trainer's names.

    A relative folder of checkpoints is not used: it is another folder in each process.
    """
    settings = Settings.from_environment()
    project, name = settings.project or project, settings.run or name
    options.setdefault("producer", "")  # files of the trainer may contain the same rows, and they have no rank
    folder = checkpoint_folder if Path(checkpoint_folder).is_absolute() else None
    return init(project=project, name=name, framework=framework, checkpoint_dir=folder, **options)
