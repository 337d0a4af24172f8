"""AReaL: its files, and `record()`, which records a run live.

Depends on: `rolloutdeck.trainer_api`; the plug-in on `rolloutdeck.trainers.common`.
Invariant: the plug-in never raises into the training.

`rollout.dump_to_file` appends to `{rollout|eval-rollout}/{version}/{task}.jsonl`.
The version is the newest version of the weights that generated the samples. Source: `_dump_trajectory` in
areal/infra/workflow_executor.py:934, AReaL cbff54d6.
"""

from __future__ import annotations

from pathlib import PurePath

from rolloutdeck.lazy import lazy_names
from rolloutdeck.trainer_api import FileHead, FileKind, TimingMetrics, TrainerFiles, assume_split, map_phases

__all__ = ["FILES", "record"]

__getattr__ = lazy_names(__name__, {"plugin": ("record",)})


def _parse_step(path: PurePath) -> int | None:
    version, task = path.parent.name, path.stem
    return int(version) if version.isdecimal() and task.isdecimal() and len(version) < 19 else None


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has_key("tail_version") and head.has_key("completion")


TIMING = TimingMetrics(
    "AReaL",
    (),
    map_phases(
        "timeperf/",
        generation="rollout",
        old_log_prob="recompute_logp",
        reference="ref_logp",
        advantage="compute_advantage critic_values",
        update="train_step critic_train_step",
        weight_sync="update_weights",
        evaluation="eval",
        checkpoint="save checkpoint_for_recover",
    ),
)

FILES = TrainerFiles(
    name="areal",
    timing=TIMING,
    kinds=(
        FileKind(
            "areal", "samples of a version", "*.jsonl", _is_samples, grows=True, step=_parse_step,
            step_kind="policy_version",
        ),
    ),
    guess_split=assume_split("train", "no folder is named eval-rollout"),
)  # fmt: skip
