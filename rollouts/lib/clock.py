"""Whether the clock of the machine was changed. The age of a file is wrong then."""

from __future__ import annotations

import time
from multiprocessing import Value
from typing import Final

MAX_DRIFT_SECONDS: Final = 60.0
# Seconds since the start of the machine, which nobody can set. Of Linux also while it sleeps: that is no change.
STEADY_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockWatch:
    """Compares the clock with a steady one. Processes that are forked from its process share what it has seen."""

    def __init__(self) -> None:
        self.offset = Value("d", measure_offset())

    def has_jumped(self) -> bool:
        """Whether the clock was changed by more than a minute since the last call in any of these processes, or since
        the start."""
        with self.offset:
            before, self.offset.value = self.offset.value, measure_offset()
            return bool(abs(self.offset.value - before) > MAX_DRIFT_SECONDS)


def measure_offset() -> float:
    return time.time() - time.clock_gettime(STEADY_CLOCK)
