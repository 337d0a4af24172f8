"""Metrics as one JSON object per line with a step and numbers: `metrics.jsonl`, `history.jsonl`, `logging.jsonl`.

| program                             | file                | step                      | time                |
|-------------------------------------|---------------------|---------------------------|---------------------|
| tinker-cookbook (`JsonLogger`)      | metrics.jsonl       | `step`                    |                     |
| prime-rl (`FileMonitor`)            | metrics.jsonl       | `step`                    | `time`              |
| ART (`Model.log`)                   | history.jsonl       | `step`                    | `recorded_at`       |
| ms-swift (`ProgressCallbackNew`)    | logging.jsonl       | `global_step/max_steps`   |                     |
| ms-swift with Megatron              | logging.jsonl       | `iteration`, like `5/100` |                     |
| LLaMA-Factory (`LogCallback`)       | trainer_log.jsonl   | `current_steps`           |                     |
| exports of W&B                      | wandb-history.jsonl | `_step`                   | `_timestamp`        |

The values of an object in a row get its name and a slash. Texts are skipped, unless they are a number. A step may have
several rows; their values are merged. A row without a step has the step of the upload. Source: `write_metrics` in
tinker_cookbook/stores/training_store.py, thinking-machines-lab/tinker-cookbook 9dfcc3a2; swift/trainers/patcher.py and
swift/megatron/callbacks/print.py, modelscope/ms-swift; `_log_metrics` in src/art/model.py, OpenPipe/ART.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, BinaryIO

from rolloutdeck.protocol import METRIC_STEP_KEYS, find_metric_step, is_metric_row
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import read_jsonl_rows
from rollouts.samples import LineProblem, MetricPoint, SkippedRow, is_number, to_float

name = "metrics"

TIME_KEYS = ("_timestamp", "timestamp", "recorded_at", "time")
FIRST_TIME = 10**9  # seconds since 1970, September 2001: smaller numbers are durations
LAST_TIME = 10**11  # larger numbers count milliseconds, microseconds or nanoseconds
SNIFFED_LINES = 20
TRANSFORMERS_STEP_KEY = "global_step/max_steps"  # rows with it have the names of a log of transformers
MAX_DEPTH = 3  # of objects in a row


def sniff(filename: str, head: bytes) -> bool:
    return any(map(is_metric_row, iterate_head_rows(head)))


def iterate_head_rows(head: bytes) -> Iterator[dict[str, Any]]:
    for line in head.split(b"\n")[:SNIFFED_LINES]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def read(stream: BinaryIO, context: DumpContext) -> Iterator[MetricPoint | LineProblem | SkippedRow]:
    """Yields points in the order of the lines. Raises UnreadableDumpError if no line holds an object."""
    for item in read_jsonl_rows(stream):
        if isinstance(item, LineProblem):
            yield item
            continue
        line, row = item
        yield build_point(line, row, context, is_transformers_log=TRANSFORMERS_STEP_KEY in row)


def build_point(
    line: int, row: Mapping[str, Any], context: DumpContext, *, is_transformers_log: bool
) -> MetricPoint | LineProblem | SkippedRow:
    """Returns the point of a row. The names of a log of transformers become those of its integrations."""
    if "log_history" in row:
        return SkippedRow("a summary that repeats the rows before it")
    step = find_metric_step(row)
    step = context.step if step is None else step
    values = dict(flatten_values(row, step))
    if not values:
        return SkippedRow("a row without a number")
    if step is None:
        return LineProblem(line, f"has no step: none of {', '.join(f'`{key}`' for key in METRIC_STEP_KEYS)}")
    if is_transformers_log:
        values = {build_transformers_name(key): value for key, value in values.items()}
    return MetricPoint(step, values, context.step_kind, find_time(row))


def flatten_values(
    row: Mapping[str, Any], step: int | None, prefix: str = "", depth: int = 1
) -> Iterator[tuple[str, float | None]]:
    """Yields the numbers of a row with their names. null is a value that was not a number."""
    for key, value in row.items():
        if not prefix and (is_step(key, value, step) or (key in TIME_KEYS and parse_time(value) is not None)):
            continue
        if isinstance(value, dict) and depth < MAX_DEPTH:
            yield from flatten_values(value, None, f"{prefix}{key}/", depth + 1)
        elif value is None or is_number(value) or (isinstance(value, str) and to_float(value) is not None):
            yield prefix + key, to_float(value)


def build_transformers_name(key: str) -> str:
    """Returns the name that the trackers of transformers show: `train/loss`, `eval/reward`."""
    for split in ("eval", "test"):
        if key.startswith(f"{split}_"):
            return f"{split}/{key.removeprefix(f'{split}_')}"
    return f"train/{key}"


def is_step(key: str, value: Any, step: int | None) -> bool:
    """Whether this is the step of a row, also under a second name; another number is a value."""
    return key in METRIC_STEP_KEYS and to_float(value) in (step, None)


def find_time(row: Mapping[str, Any]) -> float | None:
    """Returns the time of a row in seconds since 1970; None if the row has none."""
    times = (parse_time(row[key]) for key in TIME_KEYS if key in row)
    return next((time for time in times if time is not None), None)


def parse_time(value: Any) -> float | None:
    """Returns the seconds since 1970 of a number of seconds, or of parts of them, or of an ISO time; None for any other
    value."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    seconds = to_float(value)
    while seconds is not None and seconds > LAST_TIME:
        seconds /= 1000
    return seconds if seconds is not None and seconds >= FIRST_TIME else None
