"""Recognises rows of metrics: one JSON object with a step and numbers, as many trainers log them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rolloutdeck.protocol.columns import has_generation_columns

# Names of the step, the most exact first. A value may have the last step after a slash: `5/100`.
METRIC_STEP_KEYS = (
    "step", "global_step", "global_step/max_steps", "_step", "train/global_step", "trainer/global_step",
    "training_step", "train_step", "current_steps", "iteration", "iter",
)  # fmt: skip
MAX_TEXT_CHARS = 200  # longer texts are generations or messages, which metrics do not have
MAX_DEPTH = 3  # of objects in a row
_STEP_OF_STEPS = re.compile(r"(\d{1,18})(?:/\d{1,18})?\Z")


def find_metric_step(row: Mapping[str, Any]) -> int | None:
    """Returns the step of a row of metrics; None if it has none."""
    steps = (parse_metric_step(row[key]) for key in METRIC_STEP_KEYS if key in row)
    return next((step for step in steps if step is not None), None)


def parse_metric_step(value: Any) -> int | None:
    """Returns the step in a whole number, or in a text such as `5` and `5/100`."""
    if isinstance(value, str):
        match = _STEP_OF_STEPS.match(value.strip())
        return int(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value) if abs(value) < 2**63 else None  # no database stores more


def is_metric_row(row: Mapping[str, Any]) -> bool:
    """Whether a row has a step and another number, but no list, no long text and no generation.

    A row of `step` and one object `data` is metrics too, but of a format of its own.
    """
    if set(row) == {"step", "data"}:
        return False
    values = [value for key, value in row.items() if key not in METRIC_STEP_KEYS]
    if find_metric_step(row) is None or not any(map(_holds_number, values)) or not all(map(_is_short, values)):
        return False
    has_text = any(isinstance(value, str) for value in values)  # a name such as `output` may also be a count
    return not (has_text and has_generation_columns(row))


def _holds_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_number, value.values()))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_short(value: Any, depth: int = 1) -> bool:
    if isinstance(value, dict):
        return depth < MAX_DEPTH and all(_is_short(inner, depth + 1) for inner in value.values())
    return not isinstance(value, list) and not (isinstance(value, str) and len(value) > MAX_TEXT_CHARS)
