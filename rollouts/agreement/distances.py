"""How far two values of a question are from each other: 0 if they are equal. The squared differences `δ²` of
Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rollouts.agreement.answers import CHOICES, NUMBER, RATING, FloatArray, IntArray

MAX_SETS = 1500  # distinct sets of choices whose distances fit in memory; with more, sets are equal or not


class Distance(Protocol):
    """`level` is the level of measurement that results name."""

    level: str
    maximum: float

    def measure(self, first: IntArray, second: IntArray) -> FloatArray:
        """Distances between values, given as codes."""

    def sum_distances(self, counts: FloatArray) -> FloatArray:
        """For each value, the sum of its distances to a population that has each value `counts` times."""


class NominalDistance:
    """1 between different values."""

    level = "nominal"
    maximum = 1.0

    def measure(self, first: IntArray, second: IntArray) -> FloatArray:
        return np.asarray(first != second, np.float64)

    def sum_distances(self, counts: FloatArray) -> FloatArray:
        return np.asarray(counts.sum() - counts)


class NumberDistance:
    """The squared difference of numbers."""

    level = "interval"

    def __init__(self, numbers: FloatArray) -> None:
        # Coefficients do not depend on place and scale. From 0 to 1 squares neither overflow nor cancel.
        largest = float(np.abs(numbers).max(initial=0))
        numbers = numbers / largest if largest else numbers
        numbers = numbers - numbers.min(initial=1)
        self.numbers = numbers / (numbers.max(initial=0) or 1)
        self.maximum = 1.0

    def measure(self, first: IntArray, second: IntArray) -> FloatArray:
        return np.asarray((self.numbers[first] - self.numbers[second]) ** 2)

    def sum_distances(self, counts: FloatArray) -> FloatArray:
        size, total = counts.sum(), counts @ self.numbers
        return np.asarray(size * self.numbers**2 - 2 * self.numbers * total + counts @ self.numbers**2)


class RankDistance(NumberDistance):
    """Ordinal: a value is its middle rank among all answers; the difference is Krippendorff's ordinal metric."""

    level = "ordinal"

    def __init__(self, counts: FloatArray) -> None:
        self.scale = float(counts.sum()) or 1.0
        self.numbers = (np.cumsum(counts) - counts / 2) / self.scale
        self.maximum = float(np.ptp(self.numbers)) ** 2 if len(counts) > 1 else 1.0

    def measure_rank_shifts(self, slopes: FloatArray) -> FloatArray:
        """How much one answer of each value moves a result, through the ranks: half a rank for its own value, a rank
        for each higher one. `slopes` are the changes of the result by the number of each value."""
        above = np.cumsum(slopes[::-1])[::-1]
        return (above - slopes / 2) / self.scale


class SetDistance:
    """MASI between sets of choices: 1 - Jaccard × monotonicity. Passonneau (2006), "Measuring Agreement on Set-valued
    Items (MASI) for Semantic and Pragmatic Annotation", LREC. Two empty sets are equal."""

    level = "set"
    maximum = 1.0

    def __init__(self, sets: Sequence[frozenset[str]]) -> None:
        self.matrix = compute_masi(sets)

    def measure(self, first: IntArray, second: IntArray) -> FloatArray:
        return np.asarray(self.matrix[first, second])

    def sum_distances(self, counts: FloatArray) -> FloatArray:
        return np.asarray(self.matrix @ counts)


def compute_masi(sets: Sequence[frozenset[str]]) -> FloatArray:
    options = {option: number for number, option in enumerate(sorted({key for keys in sets for key in keys}))}
    members = np.zeros((len(sets), len(options)))
    for row, keys in enumerate(sets):
        members[row, [options[key] for key in keys]] = 1
    common = members @ members.T
    sizes = members.sum(axis=1)
    union = sizes[:, None] + sizes - common
    smaller = np.minimum(sizes[:, None], sizes)
    jaccard = np.divide(common, union, out=np.ones_like(common), where=union > 0)
    # 1 if equal, 2/3 if one contains the other, 1/3 if they overlap, 0 if they have nothing in common.
    monotonicity = np.select([common == union, common == smaller, common > 0], [1.0, 2 / 3, 1 / 3], 0.0)
    return np.asarray(1 - np.where(common == 0, common == union, jaccard * monotonicity))


def choose_distance(kind: str, values: Sequence[Any], counts: FloatArray) -> Distance:
    """Sorted values, and how often each was answered."""
    if kind == RATING:
        return RankDistance(counts)
    if kind == NUMBER:
        return NumberDistance(np.array(values, np.float64))
    if kind == CHOICES and len(values) <= MAX_SETS:
        return SetDistance(values)
    return NominalDistance()
