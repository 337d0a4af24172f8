"""The public Python API in a trainer: the `Run` that `rolloutdeck.init` returns.

Nothing here raises into the trainer or waits for the network; `finish` and the end of the process wait for a bounded
time. What could not be kept is counted, and the counts are shown on the run.
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

from rolloutdeck.client import artifact, launch, serialize, spool, writer
from rolloutdeck.client.heartbeat import Heartbeat
from rolloutdeck.client.sender import Sender
from rolloutdeck.lib import OnceLogger, ServerClient, Settings, log_or_print, logger
from rolloutdeck.protocol import ARTIFACT_ROLES, REPLAY_OUTCOMES, SPLITS, STEP_KINDS, WIRE_VERSION, SpoolHeader

if TYPE_CHECKING:
    from rolloutdeck.replay import PlanRevision

P = ParamSpec("P")
T = TypeVar("T")

# For a server that is slow to answer: without its plan a run that was started to replay one generates everything.
PLAN_SECONDS, DEFAULT_PLAN_SECONDS = 30.0, 5.0
TO_DISK_SECONDS = 30.0  # at the end of a process, for what is in memory; the disk needs no network


def _guarded(method: Callable[P, None]) -> Callable[P, None]:
    """A mistake in a call, or of ours, costs that call and one warning, never the training."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            name = method.__name__
            run: Any = args[0]
            run._voice.log_once(f"{name} {error}", "%s() was left out: %s", name, error)
            run._count_mistake(name)

    return call


class Run:
    """One training run as this process sees it; made by `init`. Threads start with the first thing that is logged.

    `uid` names the run in every address, `url` is its page once the server has said so. `ends_here`: the end of this
    process ends the run; False where another process of it goes on.
    """

    def __init__(
        self,
        identity: launch.RunIdentity,
        launched: launch.ProcessAttempt,
        settings: Settings,
        below: Path,
        about: Mapping[str, Any],
        *,
        producer: str = "",
        spool_bytes: int = spool.DEFAULT_SPOOL_BYTES,
        queue_bytes: int = writer.DEFAULT_QUEUE_BYTES,
        exit_timeout: float = 2.0,
    ) -> None:
        self.uid, self.name, self.project = identity.uid, identity.name, identity.project
        self.attempt, self.url, self.finished = launched.attempt, "", False
        self.exit_timeout, self._opener = exit_timeout, os.getpid()
        self.ends_here = True
        self._settings, self._below, self._producer = settings, below, producer
        self._limits = (spool_bytes, queue_bytes)
        self._voice = OnceLogger()
        self._step: int | None = None
        self._header: SpoolHeader = {
            "wire": WIRE_VERSION,
            "project": self.project,
            "uid": self.uid,
            "name": self.name,
            "attempt": self.attempt,
            "run": {name: value for name, value in about.items() if name != "config"},
        }
        self.assemble()

    def assemble(self) -> None:
        """Spool, threads and locks of this process; once more in a forked child, which must share none of them."""
        spool_bytes, queue_bytes = self._limits
        self._pid = os.getpid()
        own = spool.Spool(self._below, self.uid, self.attempt, self._settings.url, spool_bytes)
        self._sender = Sender(own, _connect, self._voice, self._opened, self._header)
        self._writer = writer.SpoolWriter(own, self._header, self._voice, self._sender.wake, queue_bytes)
        self._heartbeat = Heartbeat(self._sender, self._header, lambda: self._step)
        self._started, self._starting = False, threading.Lock()

    def open(self, said: Mapping[str, Any]) -> None:
        """Hands over what `POST runs/` says of the run; called once, by `init`."""
        self._put(writer.NoteItem("run", said))

    @_guarded
    def log(
        self, values: Mapping[str, Any], step: int, *, step_kind: str = "global_step", time: float | None = None
    ) -> None:
        """Metrics of one step: numbers by name, nested dicts by "/". NaN and infinite values become null.

        `time` is seconds since 1970, now by default. Values may be 0-d arrays or tensors, read a moment later in
        another thread: don't change them in place.
        """
        point = {
            "values": dict(values),
            "time": _now() if time is None or not math.isfinite(time) else float(time),
            "step_kind": _word(step_kind, "step_kind", STEP_KINDS),
            "step": self._at(step),
        }
        self._put(writer.MetricsItem(self.attempt, [point]))

    @_guarded
    def log_samples(
        self, rows: Any, step: int, split: str = "train", *, step_kind: str = "global_step", producer: str = ""
    ) -> None:
        """Generations of one step: dicts with the keys of `wire.SAMPLE_KEYS` (others are kept too), or a table of
        pyarrow, pandas or polars. Each call adds rows; NaN stays NaN.

        Arrays and tensors inside are read a moment later in another thread: don't change them in place.
        """
        taken = serialize.RowBatch(rows)
        query = self._query(step, split, step_kind, f"call:{uuid.uuid4().hex}", "native", producer)
        if taken.count:
            self._put(writer.SamplesItem(taken, query))

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
        """A file that the trainer has written and closed: its bytes are shipped as they are.

        `format` names the dump format, "" lets the server find out. `source` names the file among those of its step,
        the path as given by default: the same source with other bytes supersedes.
        """
        given = os.fspath(path)
        query = self._query(step, split, step_kind, (source or given)[-500:], format, producer)
        self._put(writer.FileItem(Path(given).absolute(), query))

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
        """A file, or the folder of a step, that a trainer could load again: named, not copied, so leave it there.

        The server is told its files and hashes; the bytes go when a pin wants them, or at once with `send_now`.
        `manifest` may hold `files` (paths below the folder, all by default) and `facts` (see `compatibility`).
        """
        artifact.preload_modules()
        given, told = Path(path).absolute(), dict(manifest or {})
        said = {
            "path": str(given),
            "role": _word(role, "role", ARTIFACT_ROLES),
            "step": self._at(step),
            "split": _word(split, "split", SPLITS),
            "step_kind": _word(step_kind, "step_kind", STEP_KINDS),
            "files": [str(name) for name in told.get("files") or ()],
            "facts": json.loads(json.dumps(dict(told.get("facts") or {}), default=serialize.convert_for_json)),
            "send_now": bool(send_now),
        }
        self._put(writer.NoteItem("artifact", said, what="artifacts"))

    def replay_plan(
        self, name: str = "", facts: Mapping[str, Any] | None = None, *, bind: bool = True, timeout: float | None = None
    ) -> PlanRevision:
        """The replay plan that this run follows, ROLLOUTDECK_PLAN or `default` without a `name`; empty where there is
        none or the server does not answer within `timeout` seconds: 5, or 30 where a plan was named. Never raises.

        The first answer binds the run to that revision unless `bind` is False; `facts` are those of `compatibility`.
        """
        from rolloutdeck.client import replay_plan
        from rolloutdeck.replay import PlanRevision

        wanted = name or self._settings.plan
        seconds = timeout if timeout is not None else PLAN_SECONDS if wanted else DEFAULT_PLAN_SECONDS
        try:
            end = time.monotonic() + seconds
            self._writer.flush(seconds)
            self._sender.drain(end - time.monotonic())  # the run must be known before it is asked about
            left = max(1.0, end - time.monotonic())
            return replay_plan.request_plan(self._header, _connect(), wanted, facts or {}, bind, left)
        except Exception as error:
            self._voice.log_once(f"plan {error}", "No replay plan, everything is generated: %s", error)
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
        """What came of a step under a plan: `hit` (replayed), `miss` (generated) or `refused` (generated, and why)."""
        said = {
            "attempt": self.attempt,
            "step": self._at(step),
            "step_kind": _word(step_kind, "step_kind", STEP_KINDS),
            "outcome": _word(outcome, "outcome", REPLAY_OUTCOMES),
            "pin": pin,
            "rows": rows,
            "seconds": None if seconds is None or not math.isfinite(seconds) else float(seconds),
            "reason": launch.clean_name(reason, 2000),
        }
        self._put(writer.NoteItem("replay", said, what="replays"))

    @_guarded
    def lose(self, reason: str, count: int = 1) -> None:
        """Counts what a trainer's plug-in could not record; shown on the run by its reason."""
        self._writer.own.drop(reason, count)

    def finish(self, outcome: str = "finished", timeout: float = 30.0) -> None:
        """Ends the run in this process: `outcome` is `finished` or `failed`.

        Waits until everything is sent, at most `timeout` seconds, and ten where the server takes nothing; what is not
        sent stays in the spool. May be called again.
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
        _word(outcome, "outcome", ("finished", "failed"))
        self._put(writer.NoteItem("finish", {"attempt": self.attempt, "outcome": outcome}))
        self.finished = True
        self._close(timeout)

    def _query(
        self, step: int | None, split: str, step_kind: str, source: str, format: str, producer: str
    ) -> dict[str, Any]:
        query = {
            "attempt": self.attempt,
            "split": _word(split, "split", SPLITS),
            "step_kind": _word(step_kind, "step_kind", STEP_KINDS),
            "step": None if step is None else self._at(step),
            "source": launch.clean_name(source, 500),
            "format": launch.clean_name(format, 40),
            "producer": launch.clean_name(producer or self._producer, 80),
        }
        return {name: value for name, value in query.items() if value not in (None, "")}

    def _at(self, step: Any) -> int:
        """The step as a whole number; tensors and 12.0 are fine."""
        if hasattr(step, "item"):
            step = step.item()
        number: int = int(step) if isinstance(step, float) and step.is_integer() else operator.index(step)
        if not 0 <= number < 2**63:
            raise ValueError(f"a step is 0 or more, not {number}")
        self._step = number if self._step is None else max(self._step, number)
        return number

    def _put(self, item: writer.QueueItem) -> None:
        if self.finished:
            raise RuntimeError("the run is finished in this process")
        self._writer.put(item)
        if not self._started:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._started:
                return
            self._started = True
            # atexit does not run in a child of multiprocessing, which has finalizers of its own.
            if _is_child():
                sys.modules["multiprocessing.util"].Finalize(None, self.at_exit, exitpriority=10)
            self._writer.start()
            self._sender.start()
            self._heartbeat.start()

    def _count_mistake(self, name: str) -> None:
        self._writer.own.drop(f"{name}(): a call that could not be understood")

    def _opened(self, data: Any) -> None:
        if isinstance(data, dict) and isinstance(data.get("url"), str):
            self.url = data["url"]
            say = log_or_print if launch.is_lead_process() and not _is_child() else logger.info
            say("Rolloutdeck shows the run %s at %s", data.get("name", self.name), self.url)

    def at_exit(self) -> None:
        """Everything to disk, what time allows to the server, and a word about what stays."""
        if self.finished or not self._started or self._pid != os.getpid():
            return
        try:
            if self.ends_here and self._pid == self._opener and not _is_child() and os.environ.get("RANK", "0") == "0":
                self._finish("failed" if getattr(sys, "last_value", None) else "finished", self.exit_timeout)
            else:  # another process goes on with the run
                self._close(self.exit_timeout)
        except Exception:
            logger.debug("The end of the run was not clean.", exc_info=True)

    def _close(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        durable = self._writer.flush(max(seconds, TO_DISK_SECONDS))
        self._sender.drain(max(0.0, end - time.monotonic()))
        self._writer.close()
        self._sender.close()
        self._heartbeat.close()
        folder = self._writer.own.folder
        left = self._writer.own.close()
        if left:
            logger.warning("%d files wait in %s. Send them with: rolloutdeck sync %s", left, folder, self._below)
        if not durable:
            logger.warning("The disk was too slow: what was logged last is lost.")


def _now() -> float:
    return time.time()


def _is_child() -> bool:
    """Whether multiprocessing started this process."""
    process = sys.modules.get("multiprocessing.process")
    return "multiprocessing.util" in sys.modules and process is not None and process.parent_process() is not None


def _word(value: str, name: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value


def _connect() -> ServerClient | None:
    """The server as the environment and the local server's file name it at this moment."""
    settings = Settings.from_environment()
    return ServerClient(settings.url, settings.token, settings.ca_bundle) if settings.url else None
