"""Which numbers count as equal."""

from __future__ import annotations


def compute_tolerance(number: float) -> float:
    """Returns the difference up to which numbers count as equal: trainers log float32, users type decimals."""
    return 1e-6 * max(1.0, abs(number))
