"""The public Python API in a trainer: the `Run` that `rolloutdeck.init` returns.

Nothing here raises into the trainer or waits for the network; only `finish` and the end of the process wait, for a
bounded time. Data that could not be stored is counted, and the counts are shown on the run.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rolloutdeck.client import artifact, process_identity, serialize, spool, writer
from rolloutdeck.client.heartbeat import Heartbeat
from rolloutdeck.client.sender import Sender
from rolloutdeck.lib import OnceLogger, ServerClient, Settings, log_or_print, logger
from rolloutdeck.protocol import ARTIFACT_ROLES, REPLAY_OUTCOMES, SPLITS, STEP_KINDS, WIRE_VERSION, SpoolHeader

if TYPE_CHECKING:
    from rolloutdeck.replay import PlanRevision

P = ParamSpec("P")
T = TypeVar("T")

# For a slow server: without its plan, a run that was started to replay one generates everything.
NAMED_PLAN_SECONDS, DEFAULT_PLAN_SECONDS = 30.0, 5.0
FLUSH_SECONDS = 30.0  # at the end of a process, to write what is in memory; this needs no network


def _guarded(method: Callable[P, None]) -> Callable[P, None]:
    """Wraps a method so that an exception costs only that call and one warning, never the training."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            name = method.__name__
            run: Any = args[0]
            run._once_logger.log_once(f"{name} {error}", "The call of %s() is ignored: %s", name, error)
            run._count_mistake(name)

    return call


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
        producer: str = "",
        spool_bytes: int = spool.DEFAULT_SPOOL_BYTES,
        queue_bytes: int = writer.DEFAULT_QUEUE_BYTES,
        exit_timeout: float = 2.0,
    ) -> None:
        self.uid, self.name, self.project = identity.uid, identity.name, identity.project
        self.attempt, self.url, self.finished = process_attempt.attempt, "", False
        self.exit_timeout, self._creator_pid = exit_timeout, os.getpid()
        self.ends_here = True
        self._settings, self._spool_root, self._producer = settings, spool_root, producer
        self._limits = (spool_bytes, queue_bytes)
        self._once_logger = OnceLogger()
        self._step: int | None = None
        self._header: SpoolHeader = {
            "wire": WIRE_VERSION,
            "project": self.project,
            "uid": self.uid,
            "name": self.name,
            "attempt": self.attempt,
            "run": {name: value for name, value in run_data.items() if name != "config"},
        }
        self.create_workers()

    def create_workers(self) -> None:
        """Creates the spool, threads and locks of this process.

        A forked child calls it again, since it must share none of them.
        """
        spool_bytes, queue_bytes = self._limits
        self._pid = os.getpid()
        own = spool.Spool(self._spool_root, self.uid, self.attempt, self._settings.url, spool_bytes)
        self._sender = Sender(own, _connect, self._once_logger, self._on_run_opened, self._header)
        self._writer = writer.SpoolWriter(own, self._header, self._once_logger, self._sender.notify, queue_bytes)
        self._heartbeat = Heartbeat(self._sender, self._header, lambda: self._step)
        self._started, self._start_lock = False, threading.Lock()

    def enqueue_run_data(self, run_data: Mapping[str, Any]) -> None:
        """Enqueues the body of `POST runs/`. `init` calls it once."""
        self._enqueue(writer.NoteItem("run", run_data))

    @_guarded
    def log(
        self, values: Mapping[str, Any], step: int, *, step_kind: str = "global_step", time: float | None = None
    ) -> None:
        """Logs metrics of one step: numbers by name.

        Nested dicts are joined by "/". NaN and infinite values become null. `time` is in seconds since 1970, by default
        now. Values may be 0-d arrays or tensors. Another thread reads them a moment later: don't change them in place.
        """
        point = {
            "values": dict(values),
            "time": _now() if time is None or not math.isfinite(time) else float(time),
            "step_kind": _check_choice(step_kind, "step_kind", STEP_KINDS),
            "step": self._parse_step(step),
        }
        self._enqueue(writer.MetricsItem(self.attempt, [point]))

    @_guarded
    def log_samples(
        self, rows: Any, step: int, split: str = "train", *, step_kind: str = "global_step", producer: str = ""
    ) -> None:
        """Logs generations of one step.

        `rows` are dicts with the keys of `wire.SAMPLE_KEYS` (other keys are stored too), or a table of pyarrow, pandas
        or polars. Each call adds rows; NaN stays NaN. Another thread reads arrays and tensors in the rows a moment
        later, so don't change them in place.
        """
        batch = serialize.RowBatch(rows)
        query = self._query(step, split, step_kind, f"call:{uuid.uuid4().hex}", "native", producer)
        if batch.count:
            self._enqueue(writer.SamplesItem(batch, query))

    @_guarded
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

    @_guarded
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
            "role": _check_choice(role, "role", ARTIFACT_ROLES),
            "step": self._parse_step(step),
            "split": _check_choice(split, "split", SPLITS),
            "step_kind": _check_choice(step_kind, "step_kind", STEP_KINDS),
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
        from rolloutdeck.client import replay_plan
        from rolloutdeck.replay import PlanRevision

        plan_name = name or self._settings.plan
        seconds = timeout if timeout is not None else NAMED_PLAN_SECONDS if plan_name else DEFAULT_PLAN_SECONDS
        try:
            end = time.monotonic() + seconds
            self._writer.flush(seconds)
            # The server must know the run before the plan is requested.
            self._sender.wait_until_empty(end - time.monotonic())
            remaining = max(1.0, end - time.monotonic())
            return replay_plan.request_plan(self._header, _connect(), plan_name, facts or {}, bind, remaining)
        except Exception as error:
            self._once_logger.log_once(f"plan {error}", "No replay plan, everything is generated: %s", error)
            return PlanRevision()

    @_guarded
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
    ) -> None:
        """Reports the result of a step under a plan.

        `outcome` is `hit` (replayed), `miss` (generated) or `refused` (generated, with a reason).
        """
        body = {
            "attempt": self.attempt,
            "step": self._parse_step(step),
            "step_kind": _check_choice(step_kind, "step_kind", STEP_KINDS),
            "outcome": _check_choice(outcome, "outcome", REPLAY_OUTCOMES),
            "pin": pin,
            "rows": rows,
            "seconds": None if seconds is None or not math.isfinite(seconds) else float(seconds),
            "reason": process_identity.clean_name(reason, 2000),
        }
        self._enqueue(writer.NoteItem("replay", body, label="replays"))

    @_guarded
    def lose(self, reason: str, count: int = 1) -> None:
        """Counts data that a trainer's plug-in could not record; the run shows the counts by reason."""
        self._writer.own.count_dropped(reason, count)

    def finish(self, outcome: str = "finished", timeout: float = 30.0) -> None:
        """Ends the run in this process. `outcome` is `finished` or `failed`.

        Waits until everything is uploaded, at most `timeout` seconds, and at most ten if the server accepts nothing.
        The rest stays in the spool. May be called again.
        """
        self._finish(outcome, timeout)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.finish("failed" if kind else "finished")

    @_guarded
    def _finish(self, outcome: str, timeout: float) -> None:
        if self.finished:
            return
        _check_choice(outcome, "outcome", ("finished", "failed"))
        self._enqueue(writer.NoteItem("finish", {"attempt": self.attempt, "outcome": outcome}))
        self.finished = True
        self._close(timeout)

    def _query(
        self, step: int | None, split: str, step_kind: str, source: str, format: str, producer: str
    ) -> dict[str, Any]:
        query = {
            "attempt": self.attempt,
            "split": _check_choice(split, "split", SPLITS),
            "step_kind": _check_choice(step_kind, "step_kind", STEP_KINDS),
            "step": None if step is None else self._parse_step(step),
            "source": process_identity.clean_name(source, 500),
            "format": process_identity.clean_name(format, 40),
            "producer": process_identity.clean_name(producer or self._producer, 80),
        }
        return {name: value for name, value in query.items() if value not in (None, "")}

    def _parse_step(self, step: Any) -> int:
        """Returns the step as an int. Accepts tensors and floats like 12.0. Raises TypeError or ValueError."""
        if hasattr(step, "item"):
            step = step.item()
        number: int = int(step) if isinstance(step, float) and step.is_integer() else operator.index(step)
        if not 0 <= number < 2**63:
            raise ValueError(f"a step must be 0 or more, not {number}")
        self._step = number if self._step is None else max(self._step, number)
        return number

    def _enqueue(self, item: writer.QueueItem) -> None:
        if self.finished:
            raise RuntimeError("the run is finished in this process")
        self._writer.enqueue(item)
        if not self._started:
            self._start()

    def _start(self) -> None:
        with self._start_lock:
            if self._started:
                return
            self._started = True
            # atexit does not run in a child of multiprocessing; its finalizers do.
            if _is_child():
                sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=10)
            self._writer.start()
            self._sender.start()
            self._heartbeat.start()

    def _count_mistake(self, name: str) -> None:
        self._writer.own.count_dropped(f"{name}(): a call that could not be understood")

    def _on_run_opened(self, data: Any) -> None:
        if isinstance(data, dict) and isinstance(data.get("url"), str):
            self.url = data["url"]
            log = log_or_print if process_identity.is_lead_process() and not _is_child() else logger.info
            log("Rolloutdeck shows the run %s at %s", data.get("name", self.name), self.url)

    def at_exit(self) -> None:
        """Writes everything to disk, uploads what the time allows, and logs how many files remain."""
        if self.finished or not self._started or self._pid != os.getpid():
            return
        try:
            is_creator = self._pid == self._creator_pid and not _is_child()
            if self.ends_here and is_creator and os.environ.get("RANK", "0") == "0":
                self._finish("failed" if getattr(sys, "last_value", None) else "finished", self.exit_timeout)
            else:  # another process continues the run
                self._close(self.exit_timeout)
        except Exception:
            logger.debug("The end of the run was not clean.", exc_info=True)

    def _close(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        is_durable = self._writer.flush(max(seconds, FLUSH_SECONDS))
        self._sender.wait_until_empty(max(0.0, end - time.monotonic()))
        self._writer.close()
        self._sender.close()
        self._heartbeat.close()
        folder = self._writer.own.folder
        remaining = self._writer.own.close()
        if remaining:
            logger.warning(
                "%d files wait in %s. Send them with: rolloutdeck sync %s", remaining, folder, self._spool_root
            )
        if not is_durable:
            logger.warning("The disk was too slow: the data that was logged last is lost.")


def _now() -> float:
    return time.time()


def _is_child() -> bool:
    """Whether multiprocessing started this process."""
    process = sys.modules.get("multiprocessing.process")
    return "multiprocessing.util" in sys.modules and process is not None and process.parent_process() is not None


def _check_choice(value: str, name: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _connect() -> ServerClient | None:
    """Returns a client for the server that the environment or the local server's file names now; None if none."""
    settings = Settings.from_environment()
    return ServerClient(settings.url, settings.token, settings.ca_bundle) if settings.url else None
