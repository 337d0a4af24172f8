"""The public Python API in a trainer: the `Run` that `rolloutdeck.init` returns.

Nothing here raises into the trainer or waits for the network; only `finish` and the end of the process wait, for a
bounded time. Data that could not be stored is counted, and the counts are shown on the run.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutdeck.client import artifact, launch, process_identity, running_attempts, serialize, spool, writer
from rolloutdeck.client.arguments import check_choice, check_columns, check_values, guard_call, parse_step
from rolloutdeck.client.rows import RowBatch
from rolloutdeck.client.status import MAX_PROBLEMS, RunStatus, build_status, report_status
from rolloutdeck.client.threads import RunThreads, connect_server
from rolloutdeck.errors import CallError
from rolloutdeck.lib import OnceLogger, RunClient, Settings, log_or_print, logger
from rolloutdeck.protocol import (
    ARTIFACT_ROLES,
    REPLAY_OUTCOMES,
    SPLITS,
    STEP_KINDS,
    WIRE_VERSION,
    SpoolHeader,
)

if TYPE_CHECKING:
    from rolloutdeck.replay import PlanRevision

# For a slow server: without its plan, a run that was started to replay one generates everything.
NAMED_PLAN_SECONDS, DEFAULT_PLAN_SECONDS = 30.0, 5.0


class Run:
    """One training run as this process sees it; created by `init`. Threads start with the first logged data.

    `uid` names the run in URLs; `url` is its page, "" until the server responds. `ends_here`: the end of this process
    ends the run; False if another process of the run continues.
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
        exit_timeout: float = 2.0,
    ) -> None:
        self.uid, self.name, self.project = identity.uid, identity.name, identity.project
        self.attempt, self.url, self.finished = process_attempt.attempt, "", False
        self.exit_timeout, self._creator_pid, self._rank = exit_timeout, os.getpid(), rank
        self._shown_name = self.name  # the server may append a number
        self.ends_here = True
        self._settings, self._spool_root, self._producer = settings, spool_root, producer
        self._limits = (spool_bytes, queue_bytes)
        self._once_logger = OnceLogger()
        self._step: int | None = None
        self._header: SpoolHeader = {"wire": WIRE_VERSION, "uid": self.uid, "project": self.project, "name": self.name}
        self._header.update({"attempt": self.attempt, "run": dict(run_data)})
        self.create_workers()

    def create_workers(self) -> None:
        """Creates the spool, threads and locks of this process.

        A forked child calls it again, since it must share none of them.
        """
        spool_bytes, queue_bytes = self._limits
        self._pid = os.getpid()
        own = spool.Spool(self._spool_root, self.uid, self.attempt, self._settings.url, spool_bytes)
        self._threads = RunThreads(
            own, self._header, self._once_logger, queue_bytes, self._on_run_opened, get_step=lambda: self._step
        )
        self._started, self._start_lock = False, threading.Lock()
        self._calls: dict[str, int] = {}  # rows by source, one source for each call of `log_samples`
        self._call_problems: dict[str, None] = {}  # why calls were ignored or cut short
        self._call_prefix = f"call:{uuid.uuid4().hex[:16]}-"

    def enqueue_run_data(self, run_data: Mapping[str, Any]) -> None:
        """Enqueues the body of `POST runs/`. `init` calls it once."""
        self._enqueue(writer.NoteItem("run", run_data))

    def start_context(self, *, with_patch: bool) -> None:
        """Collects the context of this process in a thread, since git and a slow disk may take seconds."""
        self._threads.start_context({"attempt": self.attempt, "lead": self._is_lead()}, with_patch=with_patch)

    @guard_call
    def log(
        self, values: Mapping[str, Any], step: int, *, step_kind: str = "global_step", time: float | None = None
    ) -> None:
        """Logs metrics of one step: numbers by name.

        Nested dicts are joined by "/". NaN and infinite values become null. `time` is in seconds since 1970, by default
        now. Values may be 0-d arrays or tensors. Another thread reads them a moment later: don't change them in place.
        """
        seconds = _now() if time is None or not math.isfinite(time) else float(time)
        point = {"values": check_values(values), "time": seconds, **self._build_step_fields(step, step_kind)}
        self._enqueue(writer.MetricsItem(self.attempt, [point]))

    @guard_call
    def log_samples(
        self,
        rows: Any,
        step: int,
        split: str = "train",
        *,
        step_kind: str = "global_step",
        producer: str = "",
        columns: str = "",
    ) -> None:
        """Logs generations of one step.

        `rows` are dicts, a dict of columns, or a table of pyarrow, pandas, polars or datasets. Of a stream (generator,
        `IterableDataset`, `LazyFrame`) at most 200,000 are read; if it raises, the rows before are kept. Keys are those
        of `wire.SAMPLE_KEYS` or common names such as `completion` and `reward`, as for `rolloutdeck import`. `columns`
        names others, `prompt=question,response=answer`; with "native" only the keys of `SAMPLE_KEYS` have a meaning.
        Other keys are stored too. Each call adds rows; NaN stays NaN. A row without a response costs only itself.
        Another thread reads arrays and tensors in the rows a moment later, so don't change them in place.
        """
        batch, step = RowBatch(rows), parse_step(step)
        form = columns if columns == "native" else ""
        query = self._query(step, split, step_kind, f"{self._call_prefix}{uuid.uuid4().hex[:16]}", form, producer)
        if columns and not form:
            check_columns(columns)
            query["columns"] = columns
        if batch.count:
            self._enqueue(writer.SamplesItem(batch, query))
            self._calls[query["source"]] = batch.count
        if batch.error:
            message = "The call of log_samples(step=%s) is cut short after %d rows: %s"
            self._once_logger.log_once(f"rows {batch.error}", message, step, batch.count, batch.error)
            self._count_failed_call("log_samples", "a call that was cut short", batch.error)

    @guard_call
    def log_file(
        self,
        path: str | os.PathLike[str],
        step: int | None = None,
        split: str = "train",
        format: str = "",
        *,
        step_kind: str = "global_step",
        source: str = "",
        producer: str = "",
    ) -> None:
        """Logs a file that the trainer has written and closed. Its bytes are uploaded unchanged.

        `format` is the dump format; with "" the server detects it. `source` identifies the file within its step, by
        default the given path: the same source with different bytes supersedes the earlier file.
        """
        path_text = os.fspath(path)
        query = self._query(step, split, step_kind, (source or path_text)[-500:], format, producer)
        self._enqueue(writer.FileItem(Path(path_text).absolute(), query))

    @guard_call
    def log_artifact(
        self,
        path: str | os.PathLike[str],
        step: int,
        role: str = "rollout",
        manifest: Mapping[str, Any] | None = None,
        *,
        split: str = "train",
        step_kind: str = "global_step",
        send_now: bool = False,
    ) -> None:
        """Registers a file, or the folder of a step, that a trainer can load again.

        It is not copied, so leave it in place. The server receives the file names and hashes. The bytes are uploaded
        when a pin requests them, or at once with `send_now`. `manifest` may have `files` (paths below the folder, by
        default all) and `facts` (see `compatibility`).
        """
        artifact.preload_modules()
        absolute_path, options = Path(path).absolute(), dict(manifest or {})
        body = {
            "path": str(absolute_path),
            "role": check_choice(role, "role", ARTIFACT_ROLES),
            "split": check_choice(split, "split", SPLITS),
            **self._build_step_fields(step, step_kind),
            "files": [str(name) for name in options.get("files") or ()],
            "facts": json.loads(json.dumps(dict(options.get("facts") or {}), default=serialize.convert_for_json)),
            "send_now": bool(send_now),
        }
        self._enqueue(writer.NoteItem("artifact", body, label="artifacts"))

    def replay_plan(
        self, name: str = "", facts: Mapping[str, Any] | None = None, *, bind: bool = True, timeout: float | None = None
    ) -> PlanRevision:
        """Returns the replay plan that this run follows: `name`, else ROLLOUTDECK_PLAN, else `default`. Never raises.

        The plan is empty if there is none or the server does not respond within `timeout` seconds (default: 5, or 30 if
        a plan was named). The first response binds the run to that revision unless `bind` is False; `facts` are those
        of `compatibility`.
        """
        from rolloutdeck.client.replay_plan import request_plan
        from rolloutdeck.replay import PlanRevision

        plan_name = name or self._settings.plan
        seconds = timeout if timeout is not None else NAMED_PLAN_SECONDS if plan_name else DEFAULT_PLAN_SECONDS
        try:
            end = time.monotonic() + seconds
            self._threads.writer.flush(seconds)
            # The server must know the run before the plan is requested.
            self._threads.sender.wait_until_empty(end - time.monotonic())
            remaining = max(1.0, end - time.monotonic())
            client = self._connect_run(remaining)
            return request_plan(client, plan_name, facts or {}, bind) if client else PlanRevision()
        except Exception as error:
            self._once_logger.log_once(f"plan {error}", "No replay plan, everything is generated: %s", error)
            return PlanRevision()

    @guard_call
    def report_replay(
        self,
        step: int,
        outcome: str,
        pin: int | None = None,
        rows: int | None = None,
        seconds: float | None = None,
        reason: str = "",
        *,
        step_kind: str = "global_step",
        source: str = "",
    ) -> None:
        """Reports the result of a step under a plan.

        Also logs it as the metric `replay/replayed` (1 or 0), and prints one line for a replayed step.

        `outcome` is `hit` (replayed), `miss` (generated) or `refused` (generated, with a reason). `source` names the
        pinned step in that line.
        """
        body = {
            "attempt": self.attempt,
            **self._build_step_fields(step, step_kind),
            "outcome": check_choice(outcome, "outcome", REPLAY_OUTCOMES),
            "pin": pin,
            "rows": rows,
            "seconds": None if seconds is None or not math.isfinite(seconds) else float(seconds),
            "reason": process_identity.clean_name(reason, 2000),
        }
        self._enqueue(writer.NoteItem("replay", body, label="replays"))
        values = {"replay/replayed": float(outcome == "hit")}
        if outcome == "hit":
            from rolloutdeck.client.replay_plan import describe_replayed_step

            values |= {"replay/load_seconds": body["seconds"]} if body["seconds"] is not None else {}
            log_or_print("%s", describe_replayed_step(step, pin, rows, seconds, step_kind, source))
        self.log(values, step, step_kind=step_kind)

    @guard_call
    def lose(self, reason: str, count: int = 1) -> None:
        """Counts data that a trainer's plug-in could not record; the run shows the counts by reason."""
        self._threads.spool.count_dropped(reason, count)

    @guard_call
    def finish(self, outcome: str = "finished", timeout: float = 30.0) -> None:
        """Ends the run in this process. `outcome` is `finished` or `failed`.

        Waits until everything is uploaded, at most `timeout` seconds, and at most ten if the server accepts nothing.
        The rest stays in the spool. May be called again.
        """
        if self.finished:
            return
        check_choice(outcome, "outcome", ("finished", "failed"))
        self._enqueue(writer.NoteItem("finish", {"attempt": self.attempt, "outcome": outcome}))
        self.finished = True
        self._close(timeout)

    def status(self, timeout: float = 10.0) -> RunStatus:
        """Returns how many rows this process has logged, and how many of them were sent, indexed and rejected.

        Asks the server, and waits for it at most `timeout` seconds; it does not wait for uploads. `print(run.status())`
        prints one line.
        """
        end = time.monotonic() + timeout
        if self._started:
            self._threads.writer.flush(timeout)
        return self._build_status(max(1.0, end - time.monotonic()))

    def _build_status(self, seconds: float) -> RunStatus:
        client = self._connect_run(seconds) if self._calls else None
        problems = tuple(self._call_problems)
        return build_status(self._threads.spool, client, self._calls, self._call_prefix, self.url, problems)

    def _count_failed_call(self, method: str, kind: str, reason: str) -> None:
        """Counts a call that was ignored or cut short. Of many reasons, the first are kept."""
        self._threads.spool.count_dropped(f"{method}(): {kind}")
        if len(self._call_problems) < MAX_PROBLEMS:
            self._call_problems[f"{method}(): {reason}"] = None

    def _connect_run(self, seconds: float) -> RunClient | None:
        server = connect_server()
        return RunClient(server, self._header, seconds) if server else None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.finish("failed" if kind else "finished")

    def _build_step_fields(self, step: Any, step_kind: str) -> dict[str, Any]:
        return {"step_kind": check_choice(step_kind, "step_kind", STEP_KINDS), "step": self._parse_step(step)}

    def _query(self, step: Any, split: str, step_kind: str, source: str, format: str, producer: str) -> dict[str, Any]:
        query = {
            "attempt": self.attempt,
            "split": check_choice(split, "split", SPLITS),
            "step_kind": check_choice(step_kind, "step_kind", STEP_KINDS),
            "step": None if step is None else self._parse_step(step),
            "source": process_identity.clean_name(source, 500),
            "format": process_identity.clean_name(format, 40),
            "producer": process_identity.clean_name(producer or self._find_producer(), 80),
        }
        return {name: value for name, value in query.items() if value not in (None, "")}

    def _find_producer(self) -> str:
        """Returns the given name, else one for the rank or the child process: their equal rows are two samples."""
        if self._producer is not None:
            return self._producer
        if self._rank:
            return f"rank{self._rank.number}" if self._rank.world_size > 1 else ""
        return launch.get_child_name()

    def _parse_step(self, step: Any) -> int:
        number = parse_step(step)
        self._step = number if self._step is None else max(self._step, number)
        return number

    def _enqueue(self, item: writer.QueueItem) -> None:
        if self.finished:
            raise CallError("the run is finished in this process")
        self._threads.writer.enqueue(item)
        if not self._started:
            self._start()

    def _start(self) -> None:
        with self._start_lock:
            if self._started:
                return
            self._started = True
            # atexit does not run in a child of multiprocessing; its finalizers do.
            if launch.is_child_process():
                sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=10)
            self._threads.start()

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
                self.finish("failed" if process_identity.has_failed() else "finished", self.exit_timeout)
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
        is_durable = self._threads.close(seconds)
        if self._calls or self._threads.spool.dropped:
            report_status(self._shown_name, self._build_status, end, is_lead=self._is_lead())
        own = self._threads.spool
        folder = own.folder
        if remaining := own.close():
            message = "%d files wait in %s. Send them with: rolloutdeck sync %s"
            logger.warning(message, remaining, folder, self._spool_root)
        if not is_durable:
            logger.warning("The disk was too slow: the data that was logged last is lost.")


_now = time.time  # `Run.log` has a parameter `time`
