"""Downsamples a series without losing extremes: the first, last, lowest and highest point of each bucket remain.

A bucket is 2^k steps wide and starts at a multiple of its width. So later points change only the last bucket, until k
increases by one and pairs of buckets become one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollouts.metrics.blocks import PointArrays, StepArray, ValueArray

POINTS_PER_BUCKET = 4

Positions = npt.NDArray[np.intp]


def choose_bucket_shift(first: int, last: int, max_points: int) -> int:
    """Returns the smallest k for which the steps first..last keep at most max(`max_points`, 8) points.

    Two buckets of 4 points always remain, since a bucket starts at a multiple of its width.
    """
    buckets = max(2, max_points // POINTS_PER_BUCKET)
    shift = 0
    while (last >> shift) - (first >> shift) + 1 > buckets:
        shift += 1
    return shift


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a series: where each starts, its number of points, and the bucket number of each point."""

    steps: StepArray
    shift: int
    starts: Positions
    sizes: Positions
    bucket: Positions

    @classmethod
    def from_steps(cls, steps: StepArray, shift: int) -> Buckets:
        numbers = steps >> shift
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        sizes = np.diff(starts, append=len(steps))
        return cls(steps, shift, starts, sizes, np.repeat(np.arange(len(starts)), sizes))

    def select(self, values: ValueArray) -> Positions:
        """Returns the positions of the points that remain, in order."""
        mask = np.zeros(len(values), bool)
        mask[self.starts] = True
        mask[self.starts + self.sizes - 1] = True
        mask[self.find_first_equal(values, np.fmin.reduceat(values, self.starts))] = True
        mask[self.find_first_equal(values, np.fmax.reduceat(values, self.starts))] = True
        return np.flatnonzero(mask)

    def find_first_equal(self, values: ValueArray, extremes: ValueArray) -> Positions:
        """Returns the first point of each bucket that has the value of `extremes`. None if that is NaN."""
        hits = np.flatnonzero(values == np.repeat(extremes, self.sizes))
        bucket = self.bucket[hits]
        is_first = np.ones(len(hits), bool)
        np.not_equal(bucket[1:], bucket[:-1], out=is_first[1:])
        return hits[is_first]


class Downsampler:
    """Downsamples several series. Caches the buckets because most series of a run have the same steps."""

    def __init__(self) -> None:
        self.buckets: Buckets | None = None

    def downsample(self, points: PointArrays, shift: int) -> PointArrays:
        """Buckets are 2^shift steps wide. NaN is never an extreme."""
        steps, values = points
        if len(steps) == 0:
            return points
        buckets = self.buckets
        if buckets is None or shift != buckets.shift or not np.array_equal(steps, buckets.steps):
            buckets = self.buckets = Buckets.from_steps(steps, shift)
        selected = buckets.select(values)
        return steps[selected], values[selected]


def downsample_points(points: PointArrays, max_points: int) -> PointArrays:
    """Downsamples one series to about `max_points` points, all if it is 0."""
    steps = points[0]
    if max_points <= 0 or len(steps) <= max_points:
        return points
    return Downsampler().downsample(points, choose_bucket_shift(int(steps[0]), int(steps[-1]), max_points))
