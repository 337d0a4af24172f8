"""Completions that ms-swift appends with `log_completions` to `{output_dir}/completions.jsonl`.

Each log is a line with one list per column; with Ray each sample is a line. Source: `GRPOTrainer.log` in
swift/rlhf_trainers/grpo_trainer.py:1878, `_build_log_table` in swift/megatron/trainers/rollout_mixin.py:976,
swift/ray/megatron/base_trainer.py:254, modelscope/ms-swift 3602360a.
"""

from __future__ import annotations

import re

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split

_COLUMNS_START = re.compile(rb'\s*\{\s*"(?:step|gen_step)"\s*:\s*\[')
_STEP_COLUMNS = ("step", "gen_step")


def _is_completions(name: str, head: FileHead) -> bool:
    if not head.rows:  # its first line is longer than the bytes that were read
        return bool(_COLUMNS_START.match(head.start))
    return any(next(iter(row), "") in _STEP_COLUMNS and {"prompt", "completion"} <= set(row) for row in head.rows)


FILES = TrainerFiles(
    name="swift",
    kinds=(FileKind("swift", "completions", "completions.jsonl", _is_completions, grows=True, stepless=True),),
    guess_split=assume_split("train", "the files of ms-swift do not state it"),
)
