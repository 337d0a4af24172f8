"""The completions that ms-swift appends with `log_completions`: `{output_dir}/completions.jsonl`, a line for each log,
in it a list for each column. `GRPOTrainer.log` in swift/rlhf_trainers/grpo_trainer.py:1878, `_flush_log_completions` in
swift/megatron/trainers/rollout_mixin.py:941, modelscope/ms-swift 3602360a."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolloutdeck.trainers import FileKind, Head

_BEGUN = re.compile(rb'\s*\{\s*"(?:step|gen_step)"\s*:\s*\[')
_COLUMNS = ("step", "prompt", "completion")


def _is_completions(name: str, head: Head) -> bool:
    if not head.rows:  # its first line is longer than what is seen
        return bool(_BEGUN.match(head.start))
    return any(all(isinstance(row.get(column), list) for column in _COLUMNS) for row in head.rows)


KINDS = (FileKind("swift", "completions", "completions.jsonl", "append", _is_completions, stepless=True),)

OTHERS: dict[str, str] = {}


def guess_split(heads: Sequence[Head], steps: Sequence[int]) -> tuple[str, str]:
    return "train", "ms-swift does not say it either"
