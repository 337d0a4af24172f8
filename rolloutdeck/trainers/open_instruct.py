"""Shards that open-instruct appends with `save_traces`: `{run}_rollouts_{shard:06d}.jsonl`.

A shard has many steps, with token ids and no text. Source: `_save_rollouts` in open_instruct/rl_utils.py:88,
allenai/open-instruct e6c3044a.
"""

from __future__ import annotations

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split, parse_row_step


def _is_shard(name: str, head: FileHead) -> bool:
    return head.has_key("response_tokens") and head.has_key("prompt_tokens")


FILES = TrainerFiles(
    name="open_instruct",
    kinds=(
        FileKind(
            "open-instruct", "samples", "*_rollouts_*.jsonl", _is_shard, grows=True, line_step=parse_row_step,
            stepless=True,
        ),
    ),
    guess_split=assume_split("train", "open-instruct writes no evaluation"),
    others={"*_metadata.jsonl": "a line about a run"},
)  # fmt: skip
