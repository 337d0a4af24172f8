"""Shards that open-instruct appends with `save_traces`: `{run}_rollouts_{shard:06d}.jsonl`.

A shard has many steps, with token ids and no text. Source: `_save_rollouts` in open_instruct/rl_utils.py:88,
allenai/open-instruct e6c3044a.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles


def _is_shard(name: str, head: FileHead) -> bool:
    return head.has_key("response_tokens") and head.has_key("prompt_tokens")


def _parse_step(line: bytes) -> int | None:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return step if isinstance(step, int) and not isinstance(step, bool) else None


KINDS = (
    FileKind(
        "open-instruct", "samples", "*_rollouts_*.jsonl", "append", _is_shard, line_step=_parse_step, stepless=True
    ),
)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    return "train", "open-instruct writes no evaluation"


FILES = TrainerFiles(
    name="open_instruct", kinds=KINDS, guess_split=guess_split, others={"*_metadata.jsonl": "a line about a run"}
)
