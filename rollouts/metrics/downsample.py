"""Fewer points for a chart without losing a spike: of each bucket the first, the last, the lowest and the highest.

A bucket is 2^k steps wide and starts at a multiple of its width, whatever the data's length. Points that arrive later
change the last bucket only, until k rises by one, and then each new bucket is made of two old ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollouts.metrics.blocks import PointArrays, StepArray, ValueArray

KEPT_PER_BUCKET = 4

Places = npt.NDArray[np.intp]


def choose_bucket_shift(first: int, last: int, most: int) -> int:
    """The smallest k for which the steps first..last fall into buckets that keep at most `most` points, or 8.

    Never fewer than two buckets: one always starts at step 0.
    """
    buckets = max(2, most // KEPT_PER_BUCKET)
    shift = 0
    while (last >> shift) - (first >> shift) + 1 > buckets:
        shift += 1
    return shift


@dataclass(frozen=True, slots=True)
class Buckets:
    """The steps of a series in buckets: where each starts, how many points it has, and each point's bucket."""

    steps: StepArray
    shift: int
    starts: Places
    sizes: Places
    bucket: Places

    @classmethod
    def of(cls, steps: StepArray, shift: int) -> Buckets:
        numbers = steps >> shift
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        sizes = np.diff(starts, append=len(steps))
        return cls(steps, shift, starts, sizes, np.repeat(np.arange(len(starts)), sizes))

    def fit(self, steps: StepArray, shift: int) -> bool:
        return shift == self.shift and np.array_equal(steps, self.steps)

    def kept(self, values: ValueArray) -> Places:
        """Places of the points to keep, in order."""
        keep = np.zeros(len(values), bool)
        keep[self.starts] = True
        keep[self.starts + self.sizes - 1] = True
        keep[self.first_equal(values, np.fmin.reduceat(values, self.starts))] = True
        keep[self.first_equal(values, np.fmax.reduceat(values, self.starts))] = True
        return np.flatnonzero(keep)

    def first_equal(self, values: ValueArray, wanted: ValueArray) -> Places:
        """In each bucket the first point of the wanted value; none where that is NaN."""
        hits = np.flatnonzero(values == np.repeat(wanted, self.sizes))
        bucket = self.bucket[hits]
        new = np.empty(len(hits), bool)
        new[:1] = True
        np.not_equal(bucket[1:], bucket[:-1], out=new[1:])
        return hits[new]


class Downsampler:
    """Thins series after series. Those of one run mostly have the same steps, so the buckets are kept for the next."""

    def __init__(self) -> None:
        self.buckets: Buckets | None = None

    def thin(self, points: PointArrays, shift: int) -> PointArrays:
        """Of each bucket of 2^shift steps the first, last, lowest and highest point; NaN is never an extreme."""
        steps, values = points
        if len(steps) == 0:
            return points
        if self.buckets is None or not self.buckets.fit(steps, shift):
            self.buckets = Buckets.of(steps, shift)
        kept = self.buckets.kept(values)
        return steps[kept], values[kept]
