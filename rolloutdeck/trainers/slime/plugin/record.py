"""The functions that slime calls with what it generated.

On slime's thread samples are only held as they are; rows are made in ours. All return what leaves slime's own logging
as it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.trainers.common import catch_errors, once_logger
from rolloutdeck.trainers.slime.facts import build_argument_facts
from rolloutdeck.trainers.slime.plugin.rows import (
    SlimeRow,
    add_sample_tokens,
    build_slime_rows,
    flatten_samples,
    freeze_sample,
)
from rolloutdeck.trainers.slime.plugin.session import SlimeSession, get_slime_session

KIND = "rollout_id"
SEND = "rolloutdeck_send_dumps"  # in the YAML of `--custom-config-path`: dumps go to the server before they are pinned
LIVE_SECONDS = 5.0  # between two deliveries of samples of a rollout that is not over
MAX_LIVE_SAMPLES = 4096  # samples that wait for the next one
UNFINISHED = ("pending", "aborted")


@dataclass
class PendingSamples:
    """`live`: (rollout, split) -> samples that were generated since the last delivery. `every`: those of the rollout
    that is about to end, the filtered ones too; slime lets them be until it has logged it."""

    live: dict[tuple[int, str], list[Any]] = field(default_factory=dict)
    every: list[Any] = field(default_factory=list)
    told_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


pending_samples = PendingSamples()


def log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time) -> bool:  # type: ignore[no-untyped-def]
    """For `--custom-rollout-log-function-path`: the samples and metrics of a rollout, and its dump for a pin."""
    _rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time)
    _mark(args, "logged_rollout_id", rollout_id)
    return False


def log_eval(rollout_id, args, data, extra_metrics) -> bool:  # type: ignore[no-untyped-def]
    """For `--custom-eval-rollout-log-function-path`: the samples of an eval, under the names of its data sets."""
    _eval(rollout_id, args, data, extra_metrics)
    _mark(args, "logged_eval_rollout_id", rollout_id)
    return False


def all_samples(args, all_groups, data_source) -> None:  # type: ignore[no-untyped-def]
    """For `--rollout-all-samples-process-path`: what a dynamic filter dropped is recorded too, as `filtered`.

    slime does not say of which rollout they are: that comes with `log_rollout`, right after.
    """
    _every(args, all_groups)


def sample_hook(args, sample, *, rollout_id=None, evaluation=False) -> None:  # type: ignore[no-untyped-def]
    """For `--rollout-sample-hook-path`: a sample before its reward is known and before its rollout is over."""
    _live(args, sample, rollout_id, evaluation)


@catch_errors
def _mark(args: Any, name: str, value: Any) -> None:
    """slime's contract tests ask of a function in these places that it leaves this on the arguments."""
    setattr(args, name, value)


@catch_errors
def _rollout(step: int, args: Any, samples: Any, metrics: Mapping[str, Any] | None, seconds: float) -> None:
    session, own = get_slime_session(args), flatten_samples(samples)
    kept, known = [freeze_sample(one) for one in own], set(map(id, own))
    with pending_samples.lock:
        filtered = [freeze_sample(one) for one in pending_samples.every if id(one) not in known]
        pending_samples.every = []
        pending_samples.live.pop((step, "train"), None)
    told = {**(metrics or {}), "perf/rollout_time": seconds}

    def job() -> None:
        rows = build_slime_rows([*kept, *filtered], key=str(getattr(args, "reward_key", None) or ""))
        for row in rows[len(kept) :]:
            row["filtered"] = True
        add_sample_tokens(rows, [*kept, *filtered], session.selection, "train", step)
        _send(session, rows, step, "train")
        figures = computed(args, kept, seconds)
        session.run.log({**figures, **told}, step, step_kind=KIND)

    session.later(job)
    if not getattr(args, "load_debug_rollout_data", None):
        keep_dump(session, args, step, len(kept))


@catch_errors
def _eval(step: int, args: Any, data: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
    session = get_slime_session(args)
    key = str(getattr(args, "eval_reward_key", None) or getattr(args, "reward_key", None) or "")
    sets = {
        str(name): (dict(info), [freeze_sample(one) for one in info.get("samples") or ()])
        for name, info in data.items()
    }
    with pending_samples.lock:
        pending_samples.live.pop((step, "eval"), None)

    def job() -> None:
        told: dict[str, Any] = {}
        for name, (info, samples) in sets.items():
            rows = evaluated(build_slime_rows(samples, key, name), info)
            add_sample_tokens(rows, samples, session.selection, "eval", step)
            _send(session, rows, step, "eval")
            told |= {f"eval/{name}/{one}": value for one, value in of_samples(args, samples).items()}
            told |= means(name, info)
        session.run.log({**told, **(metrics or {})}, step, step_kind=KIND)

    session.later(job)


def evaluated(rows: list[SlimeRow], info: Mapping[str, Any]) -> list[SlimeRow]:
    """With the scores and ends that slime itself counts with, where it says them for each row."""
    for name, theirs in (("score", "rewards"), ("truncated", "truncated")):
        values = info.get(theirs)
        if isinstance(values, (list, tuple)) and len(values) == len(rows):
            for row, value in zip(rows, values, strict=True):
                row[name] = value
    return rows


def means(name: str, info: Mapping[str, Any]) -> dict[str, float]:
    """Under slime's names."""
    told = {f"eval/{name}": info.get("rewards"), f"eval/{name}-truncated_ratio": info.get("truncated")}
    return {key: sum(values) / len(values) for key, values in told.items() if values}


def computed(args: Any, samples: Sequence[Any], seconds: float) -> dict[str, Any]:
    """The figures that slime logs of a rollout, by slime's own functions; {} where this slime has no such ones."""
    found = {f"rollout/{name}": value for name, value in of_samples(args, samples).items()}
    found |= {f"perf/{name}": value for name, value in compute_rollout_metrics("perf_", args, samples, seconds).items()}
    scores = [
        row["score"]
        for row in build_slime_rows(samples, str(getattr(args, "reward_key", None) or ""))
        if "score" in row
    ]
    return found | ({"rollout/reward": sum(scores) / len(scores)} if scores else {})


def of_samples(args: Any, samples: Sequence[Any]) -> dict[str, Any]:
    return compute_rollout_metrics("", args, samples)


def compute_rollout_metrics(which: str, *told: Any) -> dict[str, Any]:
    """What slime's `compute_[perf_]metrics_from_samples` says; {} where it can't."""
    try:
        from slime.observability import rollout_metrics

        compute: Callable[..., Any] = getattr(rollout_metrics, f"compute_{which}metrics_from_samples")
        return dict(compute(*told))
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        once_logger.log_once(f"figures {which}{what}", "slime's own figures are left out: %s", what)
        return {}


def keep_dump(session: SlimeSession, args: Any, step: int, rows: int) -> None:
    """Tells of the file that slime has just written of this rollout, so that it can be pinned."""
    template = getattr(args, "save_debug_rollout_data", None)
    if not template or "{rollout_id}" not in str(template):
        return
    path = Path(str(template).format(rollout_id=str(step)))
    if path.is_file():
        told = {"files": [path.name], "facts": build_argument_facts(vars(args), rows)}
        now = bool(getattr(args, SEND, False))
        session.run.log_artifact(path.parent, step, "rollout", told, step_kind=KIND, send_now=now)


@catch_errors
def _every(args: Any, groups: Any) -> None:
    _mark(args, "processed_group_count", len(groups))
    session, own = get_slime_session(args), flatten_samples(groups)
    with pending_samples.lock:
        before, pending_samples.every = pending_samples.every, own
    if before:
        session.lose("groups of rollouts that were not logged (--custom-rollout-log-function-path)", len(before))


@catch_errors
def _live(args: Any, sample: Any, rollout_id: int | None, evaluation: bool) -> None:
    state = getattr(sample, "status", None)
    if rollout_id is None or getattr(state, "value", state) in UNFINISHED:
        return
    session, at = get_slime_session(args), (int(rollout_id), "eval" if evaluation else "train")
    now = time.monotonic()
    with pending_samples.lock:
        own = pending_samples.live.setdefault(at, [])
        if len(own) < MAX_LIVE_SAMPLES:  # the others come with their rollout
            own.append(freeze_sample(sample))
        if now - pending_samples.told_at < LIVE_SECONDS:
            return
        pending_samples.told_at, due, pending_samples.live = now, pending_samples.live, {}
    session.later(lambda: _deliver(session, due))


def _deliver(session: SlimeSession, due: Mapping[tuple[int, str], Sequence[Any]]) -> None:
    for (step, split), samples in due.items():
        _send(session, build_slime_rows(samples), step, split)


def _send(session: SlimeSession, rows: Sequence[SlimeRow], step: int, split: str) -> None:
    if rows:
        session.run.log_samples(rows, step, split, step_kind=KIND)


def _in_child() -> None:
    pending_samples.lock, pending_samples.live, pending_samples.every = threading.Lock(), {}, []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
