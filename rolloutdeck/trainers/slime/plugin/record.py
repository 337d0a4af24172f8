"""The functions that slime calls with the samples it generated.

On slime's thread samples are only captured; rows are built in the session's thread. All functions return what leaves
slime's own logging unchanged.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.protocol import GUIDANCE_FIELD, format_rule_keys
from rolloutdeck.trainers.common import EqualSampleMarker, catch_errors, once_logger
from rolloutdeck.trainers.slime.facts import build_argument_facts
from rolloutdeck.trainers.slime.plugin import guidance
from rolloutdeck.trainers.slime.plugin import rows as slime_rows
from rolloutdeck.trainers.slime.plugin.rows import SlimeRow, flatten_samples, freeze_sample
from rolloutdeck.trainers.slime.plugin.session import SlimeSession, get_slime_session

STEP_KIND = "rollout_id"
# In the YAML of `--custom-config-path`: dumps are uploaded before they are pinned.
SEND_SETTING = "rolloutdeck_send_dumps"
LIVE_SECONDS = 5.0  # between two uploads of samples of an unfinished rollout
MAX_LIVE_SAMPLES = 4096  # samples that wait for the next upload
UNFINISHED = ("pending", "aborted")


@dataclass
class UnsentSamples:
    """`live_samples`: (rollout, split) -> samples generated since the last upload.

    `all_samples`: those of the rollout that is about to end, the filtered ones too; slime does not change them before
    it has logged the rollout.
    """

    live_samples: dict[tuple[int, str], list[Any]] = field(default_factory=dict)
    all_samples: list[Any] = field(default_factory=list)
    sent_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


pending_samples = UnsentSamples()


def log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time) -> bool:  # type: ignore[no-untyped-def]
    """For `--custom-rollout-log-function-path`: records the samples, metrics and dump of a rollout."""
    _record_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time)
    _set_private_argument(args, "logged_rollout_id", rollout_id)
    return False


def log_eval(rollout_id, args, data, extra_metrics) -> bool:  # type: ignore[no-untyped-def]
    """For `--custom-eval-rollout-log-function-path`: records the samples of an eval with the names of its data sets."""
    _record_eval(rollout_id, args, data, extra_metrics)
    _set_private_argument(args, "logged_eval_rollout_id", rollout_id)
    return False


def all_samples(args, all_groups, data_source) -> None:  # type: ignore[no-untyped-def]
    """For `--rollout-all-samples-process-path`: records the groups that a dynamic filter dropped, as `filtered`.

    slime does not pass the rollout's id here: `log_rollout`, called right after, has it.
    """
    _record_all_samples(args, all_groups)


def sample_hook(args, sample, *, rollout_id=None, evaluation=False) -> None:  # type: ignore[no-untyped-def]
    """For `--rollout-sample-hook-path`: records a sample before its reward is known and before its rollout ends."""
    _record_live_sample(args, sample, rollout_id, evaluation)


@catch_errors
def _set_private_argument(args: Any, name: str, value: Any) -> None:
    """Sets an attribute on slime's arguments: slime's contract tests require it of these functions."""
    setattr(args, name, value)


@catch_errors
def _record_rollout(step: int, args: Any, samples: Any, metrics: Mapping[str, Any] | None, seconds: float) -> None:
    session = get_slime_session(args)
    with session.count_capture_errors():
        samples = flatten_samples(samples)
        matched = guidance.match_rollout(args, step, samples) or []
        trained, trained_ids = [freeze_sample(sample) for sample in samples], set(map(id, samples))
    with pending_samples.lock:
        filtered = [freeze_sample(sample) for sample in pending_samples.all_samples if id(sample) not in trained_ids]
        pending_samples.all_samples = []
        pending_samples.live_samples.pop((step, "train"), None)
    rollout_metrics = {**(metrics or {}), "perf/rollout_time": seconds}

    def job() -> None:
        rows = slime_rows.build_slime_rows([*trained, *filtered], key=str(getattr(args, "reward_key", None) or ""))
        for row in rows[len(trained) :]:
            row["filtered"] = True
        for row, found in zip(rows, matched, strict=False):  # the filtered ones follow
            if found is not None:
                row[GUIDANCE_FIELD] = format_rule_keys(found.rules)
        slime_rows.add_sample_tokens(rows, [*trained, *filtered], session.selection, "train", step)
        _log_samples(session, rows, step, "train")
        computed_metrics = collect_rollout_metrics(args, trained, seconds)
        session.run.log({**computed_metrics, **rollout_metrics}, step, step_kind=STEP_KIND)

    session.submit(job)
    if not getattr(args, "load_debug_rollout_data", None):
        log_dump(session, args, step, len(trained))


@catch_errors
def _record_eval(step: int, args: Any, data: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
    session = get_slime_session(args)
    key = str(getattr(args, "eval_reward_key", None) or getattr(args, "reward_key", None) or "")
    with session.count_capture_errors():
        found = {str(name): (dict(info), info.get("samples") or ()) for name, info in data.items()}
        sets = {name: (info, list(map(freeze_sample, samples))) for name, (info, samples) in found.items()}
    with pending_samples.lock:
        pending_samples.live_samples.pop((step, "eval"), None)

    def job() -> None:
        all_metrics: dict[str, Any] = {}
        counter = EqualSampleMarker()
        for name, (info, samples) in sets.items():
            rows = apply_eval_results(slime_rows.build_slime_rows(samples, key, name), info)
            slime_rows.add_sample_tokens(rows, samples, session.selection, "eval", step)
            counter.mark_rows(rows, step)
            _log_samples(session, rows, step, "eval")
            set_metrics = compute_rollout_metrics("", args, samples)
            all_metrics |= {f"eval/{name}/{metric}": value for metric, value in set_metrics.items()}
            all_metrics |= compute_eval_means(name, info)
        session.run.log({**all_metrics, **(metrics or {})}, step, step_kind=STEP_KIND)

    session.submit(job)


def apply_eval_results(rows: list[SlimeRow], info: Mapping[str, Any]) -> list[SlimeRow]:
    """Returns the rows with the scores and truncations that slime itself uses, if it has them for each row."""
    for name, key in (("score", "rewards"), ("truncated", "truncated")):
        values = info.get(key)
        if isinstance(values, (list, tuple)) and len(values) == len(rows):
            for row, value in zip(rows, values, strict=True):
                row[name] = value
    return rows


def compute_eval_means(name: str, info: Mapping[str, Any]) -> dict[str, float]:
    """Returns the means of rewards and truncations, under slime's names."""
    columns = {f"eval/{name}": info.get("rewards"), f"eval/{name}-truncated_ratio": info.get("truncated")}
    return {key: sum(values) / len(values) for key, values in columns.items() if values}


def collect_rollout_metrics(args: Any, samples: Sequence[Any], seconds: float) -> dict[str, Any]:
    """Returns the metrics that slime logs for a rollout, computed by slime's functions; {} if this slime has none."""
    metrics = {f"rollout/{name}": value for name, value in compute_rollout_metrics("", args, samples).items()}
    performance = compute_rollout_metrics("perf_", args, samples, seconds)
    metrics |= {f"perf/{name}": value for name, value in performance.items()}
    rows = slime_rows.build_slime_rows(samples, str(getattr(args, "reward_key", None) or ""))
    scores = [row["score"] for row in rows if "score" in row]
    return metrics | ({"rollout/reward": sum(scores) / len(scores)} if scores else {})


def compute_rollout_metrics(prefix: str, *arguments: Any) -> dict[str, Any]:
    """Returns the result of slime's `compute_[perf_]metrics_from_samples`; {} if it fails."""
    try:
        from slime.observability import rollout_metrics

        compute: Callable[..., Any] = getattr(rollout_metrics, f"compute_{prefix}metrics_from_samples")
        return dict(compute(*arguments))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        once_logger.log_once(f"metrics {prefix}{reason}", "slime's own metrics are not recorded: %s", reason)
        return {}


def log_dump(session: SlimeSession, args: Any, step: int, rows: int) -> None:
    """Logs the dump that slime has just written for this rollout, so that it can be pinned."""
    template = getattr(args, "save_debug_rollout_data", None)
    if not template or "{rollout_id}" not in str(template):
        return
    path = Path(str(template).format(rollout_id=str(step)))
    if path.is_file():
        artifact = {"files": [path.name], "facts": build_argument_facts(vars(args), rows)}
        send_now = bool(getattr(args, SEND_SETTING, False))
        session.run.log_artifact(path.parent, step, "rollout", artifact, step_kind=STEP_KIND, send_now=send_now)


@catch_errors
def _record_all_samples(args: Any, groups: Any) -> None:
    _set_private_argument(args, "processed_group_count", len(groups))
    session, samples = get_slime_session(args), flatten_samples(groups)
    with pending_samples.lock:
        before, pending_samples.all_samples = pending_samples.all_samples, samples
    if before:
        details = " (is --custom-rollout-log-function-path set?)"
        session.count_lost("groups of rollouts that were not logged", len(before), details)


@catch_errors
def _record_live_sample(args: Any, sample: Any, rollout_id: int | None, evaluation: bool) -> None:
    state = getattr(sample, "status", None)
    if rollout_id is None or getattr(state, "value", state) in UNFINISHED:
        return
    guidance.start_guidance(args)
    session, key = get_slime_session(args), (int(rollout_id), "eval" if evaluation else "train")
    now = time.monotonic()
    with pending_samples.lock:
        samples = pending_samples.live_samples.setdefault(key, [])
        if len(samples) < MAX_LIVE_SAMPLES:  # the others are recorded with their rollout
            samples.append(freeze_sample(sample))
        if now - pending_samples.sent_at < LIVE_SECONDS:
            return
        pending_samples.sent_at, due, pending_samples.live_samples = now, pending_samples.live_samples, {}

    def job() -> None:
        for (step, split), samples in due.items():
            _log_samples(session, slime_rows.build_slime_rows(samples), step, split)

    session.submit(job, sum(map(len, due.values())), reason="")  # their rollout records them again


def _log_samples(session: SlimeSession, rows: Sequence[SlimeRow], step: int, split: str) -> None:
    if rows:
        session.run.log_samples(rows, step, split, step_kind=STEP_KIND, columns="native")


def _reset_in_child() -> None:
    pending_samples.lock, pending_samples.live_samples, pending_samples.all_samples = threading.Lock(), {}, []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
