"""The files TRL writes, read from TRL 1.16.0 and 1.9.2 (`GRPOTrainer.log` with `log_completions`), and what its
trainers are given: `from rolloutdeck.trainers.trl import RolloutdeckCallback`, see `trl_plugin`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.trainer_api import FileKind, Head
from rolloutdeck.trainers.common.lazy import elsewhere

INSIDE = "plugin"
__getattr__ = elsewhere(
    __name__,
    {
        "trl.plugin.callback": ("RolloutdeckCallback",),
        "trl.plugin.replay_func": ("replay_rollout_func",),
        "trl.settings_check": ("TREE", "WHERE", "check", "keeping", "recommended", "replaying"),
        "trl.layout": ("asking", "likely"),
    },
)

_FILE = re.compile(r"completions_(\d{1,18})\.parquet\Z")


def _step_of(path: PurePath) -> int | None:
    found = _FILE.match(path.name)
    return int(found.group(1)) if found else None


def _is_parquet(name: str, head: Head) -> bool:
    return head.start.startswith(b"PAR1")


LOADS = ("trl-rollout",)
KINDS = (
    FileKind("trl-completions", "samples of a step", "completions_*.parquet", "whole", _is_parquet, step=_step_of),
)

OTHERS = {"trainer_state.json": "states of a trainer's checkpoints"}


def guess_split(heads: Sequence[Head], steps: Sequence[int]) -> tuple[str, str]:
    """An eval overwrites the file of its step, and no column says what a row is of."""
    return "train", "TRL writes the rows of an eval into the train file of its step"
