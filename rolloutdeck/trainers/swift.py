"""The completions that ms-swift appends with `log_completions`: `{output_dir}/completions.jsonl`, a line for each log,
in it a list for each column, with Ray a line for each sample. `GRPOTrainer.log` in swift/rlhf_trainers/grpo_trainer.py:
1878, `_build_log_table` in swift/megatron/trainers/rollout_mixin.py:976, swift/ray/megatron/base_trainer.py:254,
modelscope/ms-swift 3602360a."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles

_BEGUN = re.compile(rb'\s*\{\s*"(?:step|gen_step)"\s*:\s*\[')
_STEPS = ("step", "gen_step")


def _is_completions(name: str, head: FileHead) -> bool:
    if not head.rows:  # its first line is longer than what is seen
        return bool(_BEGUN.match(head.start))
    return any(next(iter(row), "") in _STEPS and {"prompt", "completion"} <= set(row) for row in head.rows)


KINDS = (FileKind("swift", "completions", "completions.jsonl", "append", _is_completions, stepless=True),)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    return "train", "ms-swift does not say it either"


FILES = TrainerFiles(name="swift", kinds=KINDS, guess_split=guess_split)
