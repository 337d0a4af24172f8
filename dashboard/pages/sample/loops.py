"""Finds loops in a long line by its characters, whatever the script: no spaces or sentence ends are needed."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MAX_LOOP_CHARS = 4096  # of one pass
PROBE_CHARS = 32
PROBE_DISTANCE = 512
COMPARED_CHARS = 65_536
MIN_PASSES = 4

Codes = npt.NDArray[np.uint32]


def iter_line_loops(line: str) -> Iterator[tuple[int, int, int]]:
    """Yields (first, period, passes), in order: `line[first:first + period]` occurs `passes` times in a row.

    A probe that occurs again within `MAX_LOOP_CHARS` gives the period; comparing the line with itself, shifted by the
    period, gives the ends. The time is linear in the length of the line.
    """
    codes = np.frombuffer(line.encode("utf-32-le", "surrogatepass"), np.uint32)
    at = taken = 0
    while at + PROBE_CHARS < len(line):
        period = line.find(line[at : at + PROBE_CHARS], at + 1, at + MAX_LOOP_CHARS + PROBE_CHARS) - at
        if period > 0:
            first = at - count_equal_before(codes, at, period, taken)
            end = at + period + count_equal_after(codes, at, period)
            first = find_piece_start(line, first, period)
            passes = (end - first) // period
            if passes >= MIN_PASSES:
                yield first, period, passes
                at = taken = first + period * passes
                continue
        at += PROBE_DISTANCE


def count_equal_after(codes: Codes, at: int, period: int) -> int:
    """How many characters from `at` equal those one period later."""
    start = at
    while at + period < len(codes):
        size = min(COMPARED_CHARS, len(codes) - at - period)
        different = np.flatnonzero(codes[at : at + size] != codes[at + period : at + period + size])
        if different.size:
            return at + int(different[0]) - start
        at += size
    return at - start


def count_equal_before(codes: Codes, at: int, period: int, limit: int) -> int:
    """How many characters before `at`, but not before `limit`, equal those one period later."""
    size = min(at - limit, PROBE_DISTANCE)  # the probe before this one did not find the loop
    before, later = codes[at - size : at], codes[at - size + period : at + period]
    different = np.flatnonzero(before != later)
    return size if not different.size else size - 1 - int(different[-1])


def find_piece_start(line: str, first: int, period: int) -> int:
    """The start of the first word, else of the first sentence, of the loop. `first` if it has neither."""
    if first == 0 or line[first - 1].isspace():
        return first
    for offset in range(first, first + period - 1):
        if line[offset].isspace() or line[offset] in "。！？":
            return offset + 1
    return first
