"""Files that NeMo-RL writes. Source: `log_batched_dict_as_jsonl` in nemo_rl/utils/logger.py, NVIDIA-NeMo/RL 7ea279a."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles

_FILE = re.compile(r"(train|val)_data_step(\d{1,18})\.jsonl\Z")


def _step_of(path: PurePath) -> int | None:
    match = _FILE.match(path.name)
    return int(match.group(2)) if match else None


def _split_of(path: PurePath) -> str:
    match = _FILE.match(path.name)
    return "eval" if match and match.group(1) == "val" else "train"


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has_key("content") or head.first_key == "agent_ref"


KINDS = (
    FileKind(
        "nemo-rl", "samples of a step", "*_data_step*.jsonl", "complete", _is_samples, step=_step_of, split=_split_of
    ),
)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Is not called: the name of each file states its split."""
    return "train", "NeMo-RL names its validations"


FILES = TrainerFiles(
    name="nemo_rl",
    kinds=KINDS,
    guess_split=guess_split,
    others={"latest_checkpoint_status.json": "states of checkpoints"},
)
