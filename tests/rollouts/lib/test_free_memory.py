from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollouts.lib import free_memory

PIECES, PIECE_BYTES = 30_000, 4000


def count_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_that_was_freed_between_used_pieces_is_given_back() -> None:
    if not free_memory.load_malloc_trim():
        pytest.skip("this C library keeps nothing, or cannot release it")
    pieces = [bytes([number % 256]) * PIECE_BYTES for number in range(PIECES)]
    kept = pieces[::50]
    del pieces
    before = count_resident_bytes()
    assert free_memory.release_free_memory()
    assert before - count_resident_bytes() > PIECES * PIECE_BYTES / 3
    assert len(kept) == PIECES // 50
