"""Distributions of score and length, with the same bins for all sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

import numpy as np
import numpy.typing as npt

from rollouts.lib import compute_tolerance

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MAX_BINS = 12
MAX_EXACT_VALUES = 6
TAIL_PERCENT = 99  # longer values are in the last bin, so that one of them does not flatten the others


@dataclass(frozen=True, slots=True)
class Bin:
    """Values from `low` to below `high`; those that a query for `low` finds if they are equal. None for no limit.
    Near an edge, scores count as equal to it, as in a query; whole numbers do not."""

    low: float | None
    high: float | None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """For each side and bin: `counts` of samples, and their `shares` of the side's samples with a value, weighted by
    source if the mix of sources is the same."""

    name: str
    bins: list[Bin]
    counts: list[list[int]]
    shares: list[list[float]]
    medians: list[float | None]


def choose_bins(arrays: Sequence[FloatArray], *, is_length: bool = False) -> list[Bin]:
    """Bins between round numbers, or one per value if there are few different ones. Empty without values. Those of
    lengths are between whole numbers, and the last one has no end."""
    values = np.concatenate([array[np.isfinite(array)] for array in arrays]) if arrays else np.empty(0)
    if not len(values):
        return []
    different = np.unique(values)
    exact = different.tolist() if is_length or len(different) > MAX_BINS else merge_near_values(different)
    if len(exact) <= MAX_EXACT_VALUES:
        return [Bin(value, value, is_length) for value in exact]
    low, high = float(different[0]), float(different[-1])
    end = float(np.percentile(values, TAIL_PERCENT)) if is_length else high
    edges = compute_round_edges(low, max(end, low), is_whole=is_length)
    bins = [Bin(first, last, is_length) for first, last in pairwise(edges)]
    if high >= edges[-1] - get_tolerance(bins[-1], edges[-1]):
        bins.append(Bin(edges[-1], None, is_length))
    return bins


def merge_near_values(values: FloatArray) -> list[float]:
    """Of sorted values that differ only by single precision, such as 1.1 and 1.10000002, the one with the fewest
    digits."""
    merged: list[float] = []
    for value in values.tolist():
        if merged and value - merged[-1] <= compute_tolerance(value):
            merged[-1] = min(merged[-1], value, key=lambda number: len(repr(number)))
        else:
            merged.append(value)
    return merged


def compute_round_edges(low: float, high: float, *, is_whole: bool) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, at most about `MAX_BINS` steps apart."""
    width = (high - low) / MAX_BINS or abs(high) or 1.0
    size = max(10.0 ** floor(log10(width)), 1.0 if is_whole else 0.0)
    steps = [size * factor for factor in (1, 2, 2.5, 5, 10)]
    step = next(step for step in steps if step >= width * 0.999 and not (is_whole and step % 1))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(at * step, 12) for at in range(first, max(last, first + 1) + 1)]


def build_distribution(
    name: str, bins: list[Bin], arrays: Sequence[FloatArray], weights: Sequence[FloatArray], masks: Sequence[BoolArray]
) -> Distribution:
    """Of the samples that `masks` select. `weights` are of samples."""
    counts, shares, medians = [], [], []
    for values, weight, mask in zip(arrays, weights, masks, strict=True):
        known = mask & np.isfinite(values)
        inside = [known & select_bin(values, place) for place in bins]
        total = float(weight[known].sum())
        counts.append([int(np.count_nonzero(part)) for part in inside])
        shares.append([float(weight[part].sum()) / total if total else 0.0 for part in inside])
        medians.append(compute_weighted_median(values[known], weight[known]))
    return Distribution(name, bins, counts, shares, medians)


def select_bin(values: FloatArray, place: Bin) -> BoolArray:
    low, high = place.low, place.high
    if low is not None and low == high:
        return np.asarray(np.abs(values - low) <= get_tolerance(place, low))
    above = values >= low - get_tolerance(place, low) if low is not None else np.ones(len(values), bool)
    return np.asarray(above & (values < high - get_tolerance(place, high)) if high is not None else above)


def get_tolerance(place: Bin, edge: float) -> float:
    return 0.0 if place.is_whole else compute_tolerance(edge)


def compute_weighted_median(values: FloatArray, weights: FloatArray) -> float | None:
    if not len(values) or not weights.sum():
        return None
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
