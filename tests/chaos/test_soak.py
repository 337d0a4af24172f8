"""What the soak test reports as growth of memory and of open files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.soak import Usage, count_open_files


@pytest.mark.parametrize(
    ("memory", "files", "problems"),
    [
        ([400, 410, 430, 420, 455, 450], [80, 90, 85, 80, 95, 90], []),
        ([400, 400, 430, 440, 465, 470], [80] * 6, ["memory grew from 400 MB to 468 MB"]),
        ([400] * 6, [80, 80, 100, 110, 140, 150], ["open files grew from 80 to 145"]),
    ],
)
def test_growth_is_the_difference_between_the_first_and_the_last_third(
    memory: list[float], files: list[int], problems: list[str]
) -> None:
    assert Usage(memory, files).find_growth() == problems


def test_open_files_are_counted_and_ended_processes_are_not() -> None:
    before = count_open_files([os.getpid()])
    with Path(os.devnull).open():
        assert count_open_files([os.getpid(), 2**22 + 1]) == before + 1
