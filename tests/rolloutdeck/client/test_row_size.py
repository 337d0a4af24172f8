"""The size of rows in memory until they are written; `queue_bytes` limits the sum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from rolloutdeck.client.rows import RowBatch

PICTURE = SimpleNamespace(width=512, height=512, getbands=lambda: "RGB", tobytes=bytes)  # as one of Pillow
MEGABYTE = "x" * 1_000_000


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (MEGABYTE, 1_000_000, 1_001_000),
        ({"trace": MEGABYTE}, 1_000_000, 1_001_000),
        ([MEGABYTE], 1_000_000, 1_001_000),
        ([[MEGABYTE], [MEGABYTE]], 2_000_000, 2_001_000),
        (["x" * 100] * 10_000, 1_000_000, 1_001_000),
        ([{"role": "user", "content": MEGABYTE}], 1_000_000, 1_001_000),
        (PICTURE, 786_432, 787_000),
        ([PICTURE, PICTURE], 1_572_864, 1_573_000),
        (numpy.zeros((1, 8192, 20), numpy.float32), 655_360, 656_000),
        (list(range(1000)), 1_000, 9_000),
        ([], 0, 100),
        ({}, 0, 100),
    ],
)
def test_the_size_of_a_row_is_about_its_size_in_memory(value: Any, least: int, most: int) -> None:
    assert least <= RowBatch([{"prompt": "p", "response": "r", "extra": value}]).size <= most
