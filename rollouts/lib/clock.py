"""Whether the clock of the machine was changed. The age of a file is wrong then."""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

MAX_DRIFT_SECONDS: Final = 60.0
# Seconds since the start of the machine, which nobody can set. Of Linux also while it sleeps: that is no change.
STEADY_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockWatch:
    """Compares the clock with a steady one. Processes that are forked from its process share what it has seen."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, struct.calcsize("d"))  # shared, and without a lock that a killed process could keep
        struct.pack_into("d", self.memory, 0, measure_offset())

    def has_jumped(self) -> bool:
        """Whether the clock was changed by more than a minute since the last call in any of these processes, or since
        the start."""
        now, (before,) = measure_offset(), struct.unpack_from("d", self.memory)
        struct.pack_into("d", self.memory, 0, now)
        return bool(abs(now - before) > MAX_DRIFT_SECONDS)


def measure_offset() -> float:
    return time.time() - time.clock_gettime(STEADY_CLOCK)
