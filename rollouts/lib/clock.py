"""Whether the clock of the machine was changed. The age of a file is wrong then."""

from __future__ import annotations

import time
from typing import Final

MAX_DRIFT_SECONDS: Final = 60.0


class ClockWatch:
    """Compares the clock with the one that nobody can set (time.monotonic)."""

    def __init__(self) -> None:
        self.offset = self.measure_offset()

    @staticmethod
    def measure_offset() -> float:
        return time.time() - time.monotonic()

    def has_jumped(self) -> bool:
        """Whether the clock was changed by more than a minute since the last call, or since the start."""
        before, self.offset = self.offset, self.measure_offset()
        return abs(self.offset - before) > MAX_DRIFT_SECONDS
