"""Files that AReaL appends with `rollout.dump_to_file`: `{rollout|eval-rollout}/{version}/{task}.jsonl`.

The version is the newest version of the weights that generated the samples. Source: `_dump_trajectory` in
areal/infra/workflow_executor.py:934, AReaL cbff54d6.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles


def _step_of(path: PurePath) -> int | None:
    version, task = path.parent.name, path.stem
    return int(version) if version.isdecimal() and task.isdecimal() and len(version) < 19 else None


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has_key("tail_version") and head.has_key("completion")


KINDS = (
    FileKind(
        "areal", "samples of a version", "*.jsonl", "append", _is_samples, step=_step_of, step_kind="policy_version"
    ),
)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    return "train", "no folder is named eval-rollout"


FILES = TrainerFiles(name="areal", kinds=KINDS, guess_split=guess_split)
