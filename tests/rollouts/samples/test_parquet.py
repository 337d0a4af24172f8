"""How the bodies in a file are divided into row groups."""

from __future__ import annotations

import pytest

from rollouts.samples.parquet import LONG_ROW_BYTES, BodyLayout, find_row_group_bounds
from rollouts.samples.record import Record


@pytest.mark.parametrize(
    ("chars", "groups"),
    [
        ([10] * 130, [(0, 128), (128, 130)]),
        ([LONG_ROW_BYTES // 2] * 10, [(0, 8), (8, 10)]),
        ([10, 10, LONG_ROW_BYTES, 10, LONG_ROW_BYTES, LONG_ROW_BYTES], [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6)]),
    ],
)
def test_row_groups_are_small_and_a_long_sample_has_its_own(chars: list[int], groups: list[tuple[int, int]]) -> None:
    records = [Record(prompt="", response="x" * count) for count in chars]
    names = [str(at) for at in range(len(records))]
    assert list(find_row_group_bounds(BodyLayout.from_records(records).table(records, names, names))) == groups
