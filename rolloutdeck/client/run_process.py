"""What one process of a run owns: its spool, its threads, its counts, and what happens when the process ends."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rolloutdeck.client import launch, process_identity, running_attempts, spool, writer
from rolloutdeck.client.arguments import check_choice, choose_seconds, guard_call
from rolloutdeck.client.guidance import Guidance
from rolloutdeck.client.status import MAX_PROBLEMS, RunStatus, build_status, report_status
from rolloutdeck.client.threads import RunThreads, connect_server
from rolloutdeck.client.writer_items import NoteItem, WriterItem
from rolloutdeck.errors import CallError
from rolloutdeck.lib import OnceLogger, RunClient, Settings, log_or_print, logger
from rolloutdeck.protocol import WIRE_VERSION, SpoolHeader

# Limits of what waits for the network, if the caller gives none.
EXIT_SECONDS: Final = 2.0
FINISH_SECONDS: Final = 30.0
STATUS_SECONDS: Final = 10.0


class RunProcess:
    """The run in this process. Threads start with the first logged data; a forked child creates its own.

    `uid` names the run in URLs; `url` is its page, "" until the server responds. `ends_here`: the end of this process
    ends the run; False if another process of the run continues. `is_disabled`: it could not be opened, and nothing is
    recorded.
    """

    def __init__(
        self,
        identity: process_identity.RunIdentity,
        process_attempt: process_identity.ProcessAttempt,
        settings: Settings,
        spool_root: Path,
        run_data: Mapping[str, Any],
        *,
        producer: str | None = "",
        rank: launch.Rank | None = None,
        spool_bytes: int = spool.DEFAULT_SPOOL_BYTES,
        queue_bytes: int = writer.DEFAULT_QUEUE_BYTES,
        exit_timeout: float | None = EXIT_SECONDS,
    ) -> None:
        self.uid, self.name, self.project = identity.uid, identity.name, identity.project
        self.attempt, self.url, self.finished = process_attempt.attempt, "", False
        self.exit_timeout = choose_seconds(exit_timeout, "exit_timeout", EXIT_SECONDS)
        self._creator_pid, self._rank = os.getpid(), rank
        self._parent_rank = None if rank else launch.detect_parent_rank(os.environ)
        self._shown_name = self.name  # the server may append a number
        self.ends_here, self.is_disabled = True, False
        self._settings, self._spool_root, self._producer = settings, spool_root, producer
        self._limits = (spool_bytes, queue_bytes)
        self._once_logger = OnceLogger()
        self._step: int | None = None
        self._header: SpoolHeader = {"wire": WIRE_VERSION, "uid": self.uid, "project": self.project, "name": self.name}
        self._header.update({"attempt": self.attempt, "run": dict(run_data)})
        self._earlier_error = process_identity.get_last_error()
        process_identity.hold_attempt(self.attempt)
        self.create_workers()

    def create_workers(self) -> None:
        """Creates the spool, threads and locks of this process.

        A forked child calls it again, since it must share none of them.
        """
        spool_bytes, queue_bytes = self._limits
        self._pid = os.getpid()
        self._inherited_name = launch.get_child_name()  # of the parent, if multiprocessing is forking this process
        own = spool.Spool(self._spool_root, self.uid, self.attempt, self._settings.url, spool_bytes)
        self._threads = RunThreads(
            own, self._header, self._once_logger, queue_bytes, self._on_run_opened, get_step=lambda: self._step
        )
        self._started, self._start_lock = False, threading.Lock()
        self._logged_rows, self._count_lock = 0, threading.Lock()  # rows of all calls of `log_samples`
        self._files: Counter[str] = Counter()  # calls of `log_file` by source
        self._call_problems: dict[str, None] = {}  # why calls were ignored or cut short
        self._guidance: Guidance | None = None
        self._call_prefix = f"call:{uuid.uuid4().hex[:16]}-"

    def enqueue_run_data(self, run_data: Mapping[str, Any]) -> None:
        """Enqueues the body of `POST runs/`. `init` calls it once."""
        self._enqueue(NoteItem("run", run_data))

    def start_context(self, *, with_patch: bool) -> None:
        """Collects the context of this process in a thread, since git and a slow disk may take seconds."""
        self._threads.start_context({"attempt": self.attempt, "lead": self._is_lead()}, with_patch=with_patch)

    @guard_call
    def finish(self, outcome: str = "finished", timeout: float | None = FINISH_SECONDS) -> None:
        """Ends the run in this process. `outcome` is `finished` or `failed`.

        Waits until everything is uploaded, at most `timeout` seconds (None: no limit), and at most ten if the server
        accepts nothing. The rest stays in the spool. May be called again.

        Without this call the end of the process ends the run, which has failed if an exception ended the process. After
        `sys.exit(1)` it is finished, except within `with init(...)`.
        """
        if self.finished:
            return
        check_choice(outcome, "outcome", ("finished", "failed"))
        seconds = choose_seconds(timeout, "timeout", FINISH_SECONDS)
        self._enqueue(NoteItem("finish", {"attempt": self.attempt, "outcome": outcome}))
        self.finished = True
        try:
            self._close(seconds)
        finally:
            process_identity.release_attempt(self.attempt)

    def status(self, timeout: float | None = STATUS_SECONDS) -> RunStatus:
        """Returns how many rows and files this process has logged, and how many were sent, indexed and rejected.

        Asks the server, and waits for it at most `timeout` seconds; it does not wait for uploads. `print(run.status())`
        prints one line.
        """
        seconds = choose_seconds(timeout, "timeout", STATUS_SECONDS)
        end = time.monotonic() + seconds
        if self._started:
            self._threads.writer.flush(seconds)
        return self._build_status(max(1.0, end - time.monotonic()))

    def _enqueue(self, item: WriterItem) -> None:
        if self.finished:
            raise CallError("the run is finished in this process")
        self._threads.writer.enqueue(item)
        if not self._threads.is_started:
            self._start()

    def _start(self) -> None:
        with self._start_lock:
            if self._threads.is_started:
                return
            # atexit does not run in a child of multiprocessing; its finalizers do.
            if not self._started and launch.is_child_process():
                sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=10)
            self._started = True
            try:
                self._threads.start()
            except RuntimeError as error:  # the next call tries again
                message = "No thread can be started, so what is logged stays in memory for now: %s"
                self._once_logger.log_once("threads", message, error)

    def _on_run_opened(self, data: Any) -> None:
        if isinstance(data, dict) and isinstance(data.get("url"), str):
            self.url, self._shown_name = data["url"], str(data.get("name") or self.name)
            log = log_or_print if self._is_lead() else logger.info
            log("Rolloutdeck shows the run %s at %s", self._shown_name, self.url)
            if running := data.get("running"):
                running_attempts.report_running_attempts(
                    running, self._spool_root, self._shown_name, self.attempt, self._connect_run
                )

    def at_exit(self) -> None:
        """Writes everything to disk, uploads what the time allows, and logs how many files remain."""
        if self.finished or not self._started or self._pid != os.getpid():
            return
        try:
            if self.ends_here and self._is_ending_rank():
                has_failed = process_identity.has_failed(self._earlier_error)
                self.finish("failed" if has_failed else "finished", self.exit_timeout)
            else:  # another process continues the run
                self._close(self.exit_timeout)
        except Exception:
            logger.debug("The end of the run was not clean.", exc_info=True)

    def _is_lead(self) -> bool:
        return process_identity.is_lead_process(rank=self._rank.number if self._rank else None)

    def _is_ending_rank(self) -> bool:
        """Whether the end of this process ends the run: it opened the run, as rank 0 or as the only process."""
        if self._pid != self._creator_pid:
            return False
        return self._rank.number == 0 if self._rank else not launch.is_child_process()

    def _close(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        if self._guidance:
            self._guidance.close()
        is_durable = self._threads.close(seconds)
        if self._logged_rows or self._files or self._threads.spool.dropped:
            report_status(self._shown_name, self._build_status, end, is_lead=self._is_lead())
        own = self._threads.spool
        folder = own.folder
        if remaining := own.close():
            files, them = ("1 file waits", "it") if remaining == 1 else (f"{remaining:,} files wait", "them")
            logger.warning("%s in %s. Send %s with: rolloutdeck sync %s", files, folder, them, self._spool_root)
        if own.read_error:
            text = "The spool %s can't be read: %s. What was not sent is still in it. Send it with: rolloutdeck sync %s"
            logger.warning(text, folder, own.read_error, self._spool_root)
        if not is_durable:
            logger.warning("The disk was too slow: the data that was logged last is lost.")

    def _build_status(self, seconds: float) -> RunStatus:
        client = self._connect_run(seconds) if self._logged_rows or self._files else None
        own, problems = self._threads.spool, tuple(self._call_problems)
        return build_status(own, client, self._logged_rows, self._call_prefix, self.url, problems, self._files)

    def _count_failed_call(self, method: str, kind: str, reason: str) -> None:
        """Counts a call that was ignored or cut short. Of many reasons, the first are kept."""
        self._threads.spool.count_dropped(f"{method}(): {kind}")
        if len(self._call_problems) < MAX_PROBLEMS:
            self._call_problems[f"{method}(): {reason}"] = None

    def _connect_run(self, seconds: float) -> RunClient | None:
        server = connect_server()
        return RunClient(server, self._header, seconds) if server else None
