"""verl's `file` logger: one line `{"step": int, "data": {name: number or null}}` per `log()`, appended.

NaN arrives as null. A step may have several lines (fully async writes up to three); their values join.
Source: `FileLogger` in verl/utils/tracking.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import Told
from rollouts.formats.readers.jsonl import rows
from rollouts.samples.record import Point, Problem
from rollouts.samples.values import integer, is_number, number

name = "verl-metrics"

HEAD = re.compile(rb'\s*\{\s*"step"\s*:\s*-?\d+\s*,\s*"data"\s*:\s*\{')


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head))


def read(stream: BinaryIO, told: Told) -> Iterator[Point | Problem]:
    """Points in the order of the lines. Raises UnreadableDump when no line holds an object."""
    for row in rows(stream):
        yield row if isinstance(row, Problem) else point(*row, told)


def point(line: int, row: dict[str, Any], told: Told) -> Point | Problem:
    step, data = integer(row.get("step")), row.get("data")
    if step is None or not isinstance(data, dict):
        return Problem(line, 'no metrics line: `{"step": number, "data": {name: number}}` is expected')
    values = {key: number(value) for key, value in data.items() if value is None or is_number(value)}
    return Point(step, values, told.step_kind)
