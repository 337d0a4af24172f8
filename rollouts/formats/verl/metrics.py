"""verl's `file` logger: one line `{"step": int, "data": {name: number or null}}` per `log()`, appended.

NaN arrives as null. A step may have several lines (fully async writes up to three); their values are merged.
Source: `FileLogger` in verl/utils/tracking.py.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import read_jsonl_rows
from rollouts.samples import LineProblem, MetricPoint, is_number, to_float, to_integer

name = "verl-metrics"

HEAD = re.compile(rb'\s*\{\s*"step"\s*:\s*-?\d+\s*,\s*"data"\s*:\s*\{')


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[MetricPoint | LineProblem]:
    """Yields points in the order of the lines. Raises UnreadableDumpError if no line holds an object."""
    for row in read_jsonl_rows(stream):
        yield row if isinstance(row, LineProblem) else build_point(*row, context)


def build_point(line: int, row: dict[str, Any], context: DumpContext) -> MetricPoint | LineProblem:
    step, data = to_integer(row.get("step")), row.get("data")
    if step is None or not isinstance(data, dict):
        return LineProblem(line, 'is not a metrics line: `{"step": number, "data": {name: number}}` is expected')
    values = {key: to_float(value) for key, value in data.items() if value is None or is_number(value)}
    return MetricPoint(step, values, context.step_kind)
