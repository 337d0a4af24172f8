"""AReaL: its files, and `record()`, which records a run live.

`rollout.dump_to_file` appends to `{rollout|eval-rollout}/{version}/{task}.jsonl`.
The version is the newest version of the weights that generated the samples. Source: `_dump_trajectory` in
areal/infra/workflow_executor.py:934, AReaL cbff54d6.
"""

from __future__ import annotations

from pathlib import PurePath

from rolloutdeck.lazy import lazy_names
from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split

__getattr__ = lazy_names(__name__, {"plugin": ("record",)})


def _step_of(path: PurePath) -> int | None:
    version, task = path.parent.name, path.stem
    return int(version) if version.isdecimal() and task.isdecimal() and len(version) < 19 else None


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has_key("tail_version") and head.has_key("completion")


FILES = TrainerFiles(
    name="areal",
    kinds=(
        FileKind(
            "areal", "samples of a version", "*.jsonl", _is_samples, grows=True, step=_step_of,
            step_kind="policy_version",
        ),
    ),
    guess_split=assume_split("train", "no folder is named eval-rollout"),
)  # fmt: skip
