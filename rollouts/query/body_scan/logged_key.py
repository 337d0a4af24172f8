"""A key that a run logged with its samples, as the body files know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoggedKey:
    """`count` samples have the key. Numbers have the range `low` to `high`, texts `distinct` values."""

    name: str
    numeric: bool
    count: int
    low: float | None = None
    high: float | None = None
    distinct: int = 0

    def merge(self, other: LoggedKey) -> LoggedKey:
        """Returns the key in both of two files."""
        bounds = [bound for bound in (self.low, other.low, self.high, other.high) if bound is not None]
        return LoggedKey(
            self.name,
            self.numeric and other.numeric,
            self.count + other.count,
            min(bounds, default=None),
            max(bounds, default=None),
            max(self.distinct, other.distinct),
        )
