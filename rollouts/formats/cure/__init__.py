"""CURE's files: programs and tests with the table of which program passes which test, and result files with metrics.

Depends on: samples, the readers of `rollouts.formats`.
Invariant: a score is computed as CURE's `reward.py` does, and is unknown where no program is correct.
"""

from rollouts.formats.cure import results, samples

__all__ = ["results", "samples"]
