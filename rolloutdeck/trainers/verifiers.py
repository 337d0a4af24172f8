"""Episodes that prime-rl and verifiers append.

`rollouts/step_{N}/{train|eval}/{all|effective}/traces.jsonl` of a training (`FileMonitor` in
src/prime_rl/monitors/file.py, PrimeIntellect-ai/prime-rl 559b4477), `{run}/traces.jsonl` of an evaluation
(verifiers/v1/cli/output.py, PrimeIntellect-ai/verifiers a60a606e), whose episodes state their step. Since autumn 2026 a
training appends all its episodes, also those of evaluations, to one stream of numbered chunks, `00000.jsonl` and so on
(src/prime_rl/monitors/file/{monitor,traces/chunks}.py, prime-rl 551bfc39).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    TimingMetrics,
    TrainerFiles,
    find_step_in_parents,
    map_phases,
    match_step,
)

_FOLDER = re.compile(r"step_(\d{1,18})\Z")


def _parse_step(path: PurePath) -> int | None:
    return find_step_in_parents(path, partial(match_step, _FOLDER))


def _is_episodes(name: str, head: FileHead) -> bool:
    # Without rows, the first line is longer than the bytes that were read.
    return head.has_key("traces") or head.has_key("nodes") or not head.rows


def _is_stream(name: str, head: FileHead) -> bool:
    if head.name_only:  # those that are full are compressed
        return True
    return bool(head.rows) and isinstance(head.rows[0].get("traces"), list) and "run" in head.rows[0]


KINDS = (
    FileKind("verifiers", "episodes", "traces.jsonl", _is_episodes, grows=True, step=_parse_step, stepless=True),
    FileKind(
        "verifiers", "episodes of a training", "[0-9][0-9][0-9][0-9][0-9].jsonl", _is_stream, grows=True,
        stepless=True, split=lambda path: "train",
    ),
)  # fmt: skip


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Returns the split that the episodes state."""
    kinds = {_read_kind(row) for head in heads for row in head.rows}
    if "eval" in kinds and "train" not in kinds:
        return "eval", "its episodes are those of an evaluation"
    return "train", "its episodes are not marked as those of an evaluation"


def _read_kind(row: dict[str, Any]) -> str:
    run = row.get("run")
    if not isinstance(run, dict):
        return ""
    work = run.get("work")
    return str((work if isinstance(work, dict) else run).get("type"))


TIMING = TimingMetrics(
    "prime-rl",
    ("time/step",),
    map_phases(
        "time/",
        waiting="wait_for_batch wait_for_policy",
        update="forward_backward",
        weight_sync="broadcast_weights",
        checkpoint="save_ckpt",
    ),
)

FILES = TrainerFiles(name="verifiers", kinds=KINDS, timing=TIMING, guess_split=guess_split)
