"""Percent agreement, Krippendorff's alpha, Fleiss' and Cohen's kappa, each also without one item at a time.

All are `1 - ratio` with the ratio of observed to expected disagreement. An interval needs the ratio without each item
(the jackknife), which follows from sums over items, so the time grows with the number of answers only. That each item
also moves the ranks of an ordinal value is taken to first order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollouts.agreement.answers import FloatArray, IntArray, Pairs
from rollouts.agreement.distances import Distance, RankDistance

MIN_EXPECTED = 1e-9  # smaller differences are errors of rounding


@dataclass(frozen=True, slots=True)
class Ratio:
    """`without` is the ratio without each item. `observed` and `expected` disagreement are shares of the largest
    possible one."""

    value: float
    without: FloatArray
    observed: float
    expected: float


def divide_or_nan(numerators: FloatArray, denominators: FloatArray, total_expected: float) -> FloatArray:
    """Returns NaN where next to nothing of `total_expected` remains, for example without the only item that has another
    value."""
    result = np.full(np.broadcast(numerators, denominators).shape, np.nan)
    is_enough = denominators > MIN_EXPECTED * total_expected
    return np.asarray(np.divide(numerators, denominators, out=result, where=is_enough))


def compute_percent(pairs: Pairs) -> Ratio:
    """Share of different pairs, each item with the same weight: 1 - P of Fleiss (1971)."""
    table = pairs.table
    count = np.bincount(pairs.item, minlength=table.items)
    different = np.bincount(pairs.item, weights=pairs.first != pairs.second, minlength=table.items) / count
    return average_ratio(different)


def average_ratio(different: FloatArray) -> Ratio:
    """The mean of disagreements from 0 to 1, one for each item."""
    total, items = different.sum(), len(different)
    mean = float(total / items)
    return Ratio(mean, (total - different) / max(1, items - 1), mean, 1.0)


def compute_alpha(pairs: Pairs, distance: Distance, corrected: bool = True) -> Ratio | None:
    """Krippendorff's alpha; Fleiss' kappa, if all items have equally many answers, is the same without the correction
    for a small sample. None if all answers are the same.

    With n answers: 1 - (n - 1) * sum over items(disagreement / (answers - 1)) / sum over all pairs(distance), where
    disagreement is the sum of the distances of the item's pairs. Not `corrected`: n in place of n - 1. The ratio for
    each item left out is computed in the same way; for ranks, to first order in the change of the ranks.
    """
    table = pairs.table
    sizes = table.answers_per_item.astype(np.float64)
    distances = distance.measure(pairs.first, pairs.second)
    item_disagreement = np.bincount(pairs.item, weights=distances, minlength=table.items) * 2
    counts = np.bincount(table.value, minlength=len(table.values)).astype(np.float64)
    distance_to_all = distance.sum_distances(counts)
    observed, expected = item_disagreement / (sizes - 1), float(counts @ distance_to_all)
    distance_of_item = np.bincount(table.item, weights=distance_to_all[table.value], minlength=table.items)
    size = sizes.sum()
    correction = 1 if corrected else 0
    if expected <= MIN_EXPECTED * size:
        return None
    value = (size - correction) * observed.sum() / expected
    rest: FloatArray = np.asarray(expected - 2 * distance_of_item + item_disagreement, np.float64)
    without = divide_or_nan((size - sizes - correction) * (observed.sum() - observed), rest, expected)
    if isinstance(distance, RankDistance):
        slopes = (size - correction) * sum_slopes(pairs, distance) - value * 4 * counts * (
            size * distance.numbers - counts @ distance.numbers
        )
        shifts = distance.measure_rank_shifts(slopes / expected)
        without -= np.bincount(table.item, weights=shifts[table.value], minlength=table.items)
    share = float(observed.sum() / size / distance.maximum)
    return Ratio(float(value), without, share, float(expected / size / (size - correction) / distance.maximum))


def sum_slopes(pairs: Pairs, distance: RankDistance) -> FloatArray:
    """How the sum of the items' disagreements changes with the number of each value."""
    sizes = pairs.table.answers_per_item[pairs.item]
    slopes = 4 * (distance.numbers[pairs.first] - distance.numbers[pairs.second]) / (sizes - 1)
    size = len(distance.numbers)
    return np.asarray(np.bincount(pairs.first, slopes, size) - np.bincount(pairs.second, slopes, size), np.float64)


def compute_kappa(first: IntArray, second: IntArray, values: int, distance: Distance) -> Ratio | None:
    """Cohen (1960), and (1968) for other distances than the nominal one, of two people's answers to the same items.
    None if both gave one and the same answer to all."""
    rows, columns = (np.bincount(codes, minlength=values).astype(np.float64) for codes in (first, second))
    from_columns, from_rows = distance.sum_distances(columns), distance.sum_distances(rows)
    distances = distance.measure(first, second)
    expected, items = float(rows @ from_columns), len(first)
    if expected <= MIN_EXPECTED * items:
        return None
    value = items * distances.sum() / expected
    rest = expected - from_columns[first] - from_rows[second] + distances
    without = divide_or_nan((items - 1) * (distances.sum() - distances), rest, expected)
    share = float(distances.mean() / distance.maximum)
    return Ratio(float(value), without, share, float(expected / items**2 / distance.maximum))
