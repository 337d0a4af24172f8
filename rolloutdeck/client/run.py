"""The public Python API in a trainer: the `Run` that `rolloutdeck.init` returns.

Nothing here raises into the trainer or waits for the network; only `finish` and the end of the process wait, for a
bounded time. Data that could not be stored is counted, and the counts are shown on the run.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutdeck.client import artifact, launch, process_identity, serialize
from rolloutdeck.client.arguments import (
    check_choice,
    check_columns,
    check_values,
    choose_seconds,
    guard_call,
    parse_step,
)
from rolloutdeck.client.guidance import Guidance
from rolloutdeck.client.rows import RowBatch
from rolloutdeck.client.run_process import RunProcess
from rolloutdeck.client.status import build_call_source
from rolloutdeck.client.threads import connect_server
from rolloutdeck.client.writer_items import FileItem, MetricsItem, NoteItem, SamplesItem
from rolloutdeck.lib import log_or_print
from rolloutdeck.protocol import (
    ARTIFACT_ROLES,
    GUIDANCE_METRICS,
    REPLAY_OUTCOMES,
    SELECTED_ACTIONS,
    SPLITS,
    STEP_KINDS,
)

if TYPE_CHECKING:
    from rolloutdeck.replay import PlanRevision

# For a slow server: without its plan, a run that was started to replay one generates everything.
NAMED_PLAN_SECONDS, DEFAULT_PLAN_SECONDS = 30.0, 5.0


class Run(RunProcess):
    """One training run as this process sees it; created by `init`. `RunProcess` describes its attributes."""

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
        self._enqueue(MetricsItem(self.attempt, [point]))

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
        query = self._query(step, split, step_kind, build_call_source(self._call_prefix, batch.count), form, producer)
        if columns and not form:
            check_columns(columns)
            query["columns"] = columns
        if batch.count:
            self._enqueue(SamplesItem(batch, query))
            with self._count_lock:
                self._logged_rows += batch.count
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
        self._enqueue(FileItem(Path(path_text).absolute(), query))
        self._files[query["source"]] += 1

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
        self._enqueue(NoteItem("artifact", body, label="artifacts"))

    def replay_plan(
        self, name: str = "", facts: Mapping[str, Any] | None = None, *, bind: bool = True, timeout: float | None = None
    ) -> PlanRevision:
        """Returns the replay plan that this run follows: `name`, else ROLLOUTDECK_PLAN, else `default`. Never raises.

        The plan is empty if there is none or the server does not respond within `timeout` seconds (default: 5, or 30 if
        a plan was named); then its `failure` says why, and a later call may return the plan. The first response binds
        the run to that revision unless `bind` is False; `facts` are those of `compatibility`.
        """
        from rolloutdeck.client.replay_plan import request_plan
        from rolloutdeck.lib import ServerUnreachableError
        from rolloutdeck.replay import PlanRevision

        plan_name = name or self._settings.plan
        default = NAMED_PLAN_SECONDS if plan_name else DEFAULT_PLAN_SECONDS
        seconds = default if timeout is None else choose_seconds(timeout, "timeout", default)
        try:
            end = time.monotonic() + seconds
            if self._started:  # else a forked child has not logged anything yet
                self._threads.writer.flush(seconds)
            # The server must know the run before the plan is requested.
            self._threads.sender.wait_until_empty(end - time.monotonic())
            remaining = max(1.0, end - time.monotonic())
            client = self._connect_run(remaining)
            return request_plan(client, plan_name, facts or {}, bind) if client else PlanRevision()
        except ServerUnreachableError as error:
            self._once_logger.log_once("no plan yet", "The replay plan is not known yet: %s", error)
            return PlanRevision(failure=str(error) or type(error).__name__)
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
        selected_action: str = "",
        selected: int | None = None,
        guidance_version: int | None = None,
    ) -> None:
        """Reports the result of a step under a plan.

        Also logs it as the metric `replay/replayed` (1 or 0), and prints one line for a replayed step.

        `outcome` is `hit` (replayed), `miss` (generated) or `refused` (generated, with a reason). `source` names the
        pinned step in that line. `selected` samples were masked, or prompts dropped or generated again, as
        `selected_action` says, since `guidance_version` selects them; None if flags do.
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
        if selected_action:  # an older server knows none of these fields, and sends no plan that needs them
            numbers = {"selected": selected, "guidance_version": guidance_version}
            body |= {"selected_action": check_choice(selected_action, "selected_action", SELECTED_ACTIONS), **numbers}
        self._enqueue(NoteItem("replay", body, label="replays"))
        values = {"replay/replayed": float(outcome == "hit")}
        if outcome == "hit":
            from rolloutdeck.client.replay_plan import describe_replayed_step

            values |= {"replay/load_seconds": body["seconds"]} if body["seconds"] is not None else {}
            log_or_print("%s", describe_replayed_step(body, source))
        self.log(values, step, step_kind=step_kind)

    def guidance(self) -> Guidance:
        """Returns the guidance rules of the project, which a thread keeps up to date from the first call on.

        Never raises and never waits: before the server has answered, the rules are those that were known last.
        """
        with self._start_lock:
            if self._guidance is None:
                folder, url = self._spool_root, self._settings.url
                self._guidance = Guidance(self.project, folder, url, connect_server, self._once_logger)
                try:
                    if not self.finished:
                        self._guidance.start()
                except RuntimeError as error:  # the interpreter is about to end
                    self._once_logger.log_once("guidance thread", "The guidance rules are not followed: %s", error)
            return self._guidance

    @guard_call
    def report_guidance(
        self,
        step: int,
        version: int,
        samples: int,
        tokens: int,
        rules: Mapping[str, int] | None = None,
        *,
        step_kind: str = "global_step",
    ) -> None:
        """Reports which version of the guidance rules applied to a step, and how many samples and tokens it affected.

        They are the metrics `guidance/version`, `guidance/samples`, `guidance/tokens` and, for the samples of each
        rule, `guidance/rule/KEY`.
        """
        counts = {f"rule/{key}": count for key, count in (rules or {}).items()}
        values = {"version": version, "samples": samples, "tokens": tokens, **counts}
        self.log({GUIDANCE_METRICS + name: value for name, value in values.items()}, step, step_kind=step_kind)

    @guard_call
    def lose(self, reason: str, count: int = 1) -> None:
        """Counts data that a trainer's plug-in could not record; the run shows the counts by reason.

        Of a reason the first 80 characters are shown, and of very many reasons the first 100.
        """
        self._threads.spool.count_dropped(reason, count)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
        self.finish("finished" if kind is None or is_exit else "failed")

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
        """Returns the given name, else one for the rank and the child process: their equal rows are two samples."""
        if self._producer is not None:
            return self._producer
        rank, is_forked = self._rank or self._parent_rank, self._pid != self._creator_pid
        names = [f"rank{rank.number}"] if rank and rank.world_size > 1 else []
        if is_forked or not self._rank:  # else it is the main process of its rank
            name = launch.get_child_name()
            # Without a launcher, a program may go on only in the process that it forked.
            if is_forked and rank and name == self._inherited_name:  # multiprocessing did not start it
                name = f"{name}-pid{self._pid}" if name else f"pid{self._pid}"
            names.append(name)
        return "-".join(filter(None, names))

    def _parse_step(self, step: Any) -> int:
        number = parse_step(step)
        self._step = number if self._step is None else max(self._step, number)
        return number


_now = time.time  # `Run.log` has a parameter `time`
