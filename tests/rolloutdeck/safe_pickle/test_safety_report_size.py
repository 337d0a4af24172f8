"""The time and memory that the safety report needs for large files."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest

from rolloutdeck import safe_pickle as safe
from rolloutdeck.safe_pickle import SafetyReport
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle import sparse

GIGABYTE = 1 << 30


class Cost(NamedTuple):
    verdict: SafetyReport
    seconds: float
    memory: int  # the most bytes at once


def measure_cost(source: ByteSource) -> Cost:
    start = time.monotonic()
    report = check_source_safety(source)
    seconds = time.monotonic() - start
    tracemalloc.start()
    try:
        check_source_safety(source)
        return Cost(report, seconds, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [GIGABYTE, 5 * GIGABYTE], ids=["1 GB", "5 GB"])
def test_a_batch_of_gigabytes_is_checked_quickly_and_not_read(tmp_path: Path, size: int) -> None:
    path = sparse.write_batch(tmp_path / "gen_batch.dp", size)
    assert path.stat().st_size > size
    with ByteSource.open(path) as source:
        result = measure_cost(source)
    assert result.verdict == SafetyReport(True, True, (), "gen_batch")
    assert result.seconds < 2
    assert result.memory < 1 << 20


def test_a_batch_of_gigabytes_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = sparse.write_batch(tmp_path / "gen_batch.dp", 5 * GIGABYTE)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert not safe.check_file_safety(path).readable


def test_a_step_of_thousands_of_rows_is_checked_in_seconds_with_its_memory_bounded() -> None:
    """A row of a `tq_batch.pt` has about a thousand opcodes in all; 8,000 values are a column of a large step."""
    values = [asm.non_tensor_data(asm.dict_(status=asm.text("success"), at=asm.number(at))) for at in range(8000)]
    data = asm.archive(asm.members(asm.queue_pickle(asm.tensordict(extra=asm.non_tensor_stack(*values)))))
    result = measure_cost(ByteSource.from_bytes(data))
    assert result.verdict.loadable
    assert result.seconds < 20
    assert result.memory < 8000 * 4096
