"""The files NeMo-RL writes: `log_batched_dict_as_jsonl` in nemo_rl/utils/logger.py, NVIDIA-NeMo/RL 7ea279a."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles

_FILE = re.compile(r"(train|val)_data_step(\d{1,18})\.jsonl\Z")


def _step_of(path: PurePath) -> int | None:
    found = _FILE.match(path.name)
    return int(found.group(2)) if found else None


def _split_of(path: PurePath) -> str:
    found = _FILE.match(path.name)
    return "eval" if found and found.group(1) == "val" else "train"


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has("content") or head.first_key == "agent_ref"


KINDS = (
    FileKind(
        "nemo-rl", "samples of a step", "*_data_step*.jsonl", "whole", _is_samples, step=_step_of, split=_split_of
    ),
)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Never asked: each file's name says it."""
    return "train", "NeMo-RL names its validations"


FILES = TrainerFiles(
    name="nemo_rl",
    kinds=KINDS,
    guess_split=guess_split,
    others={"latest_checkpoint_status.json": "states of checkpoints"},
)
