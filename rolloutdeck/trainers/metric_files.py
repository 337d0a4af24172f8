"""Files of metrics that many programs write: JSON lines with a step and numbers, and `trainer_state.json`.

A file of lines is taken by its name and its rows; with `--format metrics` any file is. The programs and their steps are
listed in `rollouts/formats/flat_metrics.py`.
"""

from __future__ import annotations

import re

from rolloutdeck.protocol import find_metric_step, is_metric_row
from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split

_NAME = re.compile(
    r"(?:.*[-_.])?(?:metrics|history|logging|logs?|progress|scalars|stats)(?:[-_.].*)?\.jsonl\Z", re.IGNORECASE
)


def _is_metrics(name: str, head: FileHead) -> bool:
    return bool(_NAME.match(name)) and any(map(is_metric_row, head.rows))


def _line_step(line: bytes) -> int | None:
    rows = FileHead.from_bytes(line).rows
    return find_metric_step(rows[0]) if rows else None


def _is_state(name: str, head: FileHead) -> bool:
    return b'"log_history"' in head.start


FILES = TrainerFiles(
    name="metric_files",
    kinds=(
        FileKind(
            "metrics", "metrics", "*.jsonl", _is_metrics, grows=True, line_step=_line_step, content="metrics"
        ),
        FileKind("trainer-state", "the logs of a trainer", "trainer_state.json", _is_state, content="metrics"),
    ),
    guess_split=assume_split("train", "metrics have no split"),
    others={"trainer_state.json": "states of a trainer's checkpoints"},
)  # fmt: skip
