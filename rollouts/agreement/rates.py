"""Shares of samples, estimated from the labelled ones: weighted by 1 / sampling probability, with intervals that follow
the strata of the sampling and keep the samples of a group together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from rollouts.agreement.answers import BoolArray, FloatArray, IntArray
from rollouts.agreement.estimates import MIN_LABELLED, Estimate, Reason
from rollouts.agreement.intervals import compute_t_quantile, compute_wilson

MAX_GAIN = 4.0  # of precision through strata


@dataclass(frozen=True)
class Design:
    """How labelled samples were drawn. `unit` numbers what was drawn independently: groups of samples, within their
    stratum. Strata of one unit are joined with the next one, so that each has a variance (collapsed strata)."""

    weights: FloatArray
    unit: IntArray
    stratum_of_unit: IntArray

    @property
    def size(self) -> int:
        return len(self.weights)

    @property
    def degrees(self) -> int:
        strata = int(self.stratum_of_unit.max(initial=-1)) + 1
        return max(1, len(self.stratum_of_unit) - strata)


def build_design(
    probabilities: FloatArray, strata: Sequence[Hashable] | None = None, groups: Sequence[Hashable] | None = None
) -> Design:
    """Raises ValueError if a probability is not above 0. It is above 1 if several draws share a population."""
    if not (probabilities > 0).all():
        raise ValueError("A sampling probability must be above 0.")
    size = len(probabilities)
    stratum = encode_labels(strata) if strata is not None else np.zeros(size, np.int64)
    group = encode_labels(groups) if groups is not None else np.arange(size)
    _, first, unit = np.unique(np.stack([stratum, group]), axis=1, return_index=True, return_inverse=True)
    return Design(1 / probabilities, unit.reshape(-1), collapse_strata(stratum[first]))


def encode_labels(labels: Sequence[Hashable]) -> IntArray:
    """In order of their first appearance."""
    codes: dict[Hashable, int] = {}
    return np.fromiter((codes.setdefault(label, len(codes)) for label in labels), np.int64, len(labels))


def collapse_strata(stratum_of_unit: IntArray) -> IntArray:
    """Cochran (1977), "Sampling Techniques", 5A.12: neighbours are joined in twos, the last three together. A stratum
    that is alone joins the one before it."""
    sizes = np.bincount(stratum_of_unit)
    alone = np.flatnonzero(sizes == 1)
    target = np.arange(len(sizes))
    for place in range(1, len(alone)):
        is_second = place % 2 == 1 or place == len(alone) - 1
        target[alone[place]] = target[alone[place - 1]] if is_second else alone[place]
    if len(alone) == 1 and len(sizes) > 1:
        target[alone[0]] = alone[0] - 1 if alone[0] else 1
    return np.unique(target[stratum_of_unit], return_inverse=True)[1]


def compute_variance(design: Design, parts: FloatArray) -> float:
    """The variance of the total of `parts`, one for each sample, over the strata."""
    totals = np.bincount(design.unit, weights=parts, minlength=len(design.stratum_of_unit))
    units = np.bincount(design.stratum_of_unit)
    means = np.bincount(design.stratum_of_unit, weights=totals) / units
    squares = np.bincount(design.stratum_of_unit, weights=(totals - means[design.stratum_of_unit]) ** 2)
    return float((squares * np.divide(units, units - 1, out=np.zeros(len(units)), where=units > 1)).sum())


def compute_effective_size(weights: FloatArray) -> float:
    """Kish (1965): the number of equally weighted samples that tell as much. Rounded, so that 20 samples are 20
    whatever their weight and order."""
    squares = float((weights**2).sum())
    return round(float(weights.sum()) ** 2 / squares, 6) if squares else 0.0


def estimate_rate(design: Design, hits: BoolArray, base: BoolArray | None = None) -> Estimate:
    """The share of `hits` among the samples of `base`. Counts only if fewer than 20 labelled ones are behind it."""
    base = np.ones(design.size, bool) if base is None else base
    labelled, weights = int(base.sum()), design.weights * base
    kish = compute_effective_size(weights)
    if min(labelled, kish) < MIN_LABELLED:
        return Estimate(size=labelled, reason=Reason.FEW_SAMPLES)
    total = weights.sum()
    share = float((weights * hits).sum() / total)
    variance = compute_variance(design, weights * (hits - share) / total)
    size = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else kish
    # A variance that rests on few hits or few misses is not trusted to be smaller than that of independent samples.
    rarer = min(compute_effective_size(weights * hits), compute_effective_size(weights * ~hits))
    size = min(size, kish) if rarer < MIN_LABELLED else min(size, labelled * MAX_GAIN)
    low, high = compute_wilson(share, size, compute_t_quantile(design.degrees))
    return Estimate(share, low, high, labelled)


def estimate_mean(design: Design, values: FloatArray) -> Estimate:
    if min(design.size, compute_effective_size(design.weights)) < MIN_LABELLED:
        return Estimate(size=design.size, reason=Reason.FEW_SAMPLES)
    total = design.weights.sum()
    scale = float(np.abs(values).max()) or 1.0  # squares of huge values do not overflow
    mean = float((design.weights * (values / scale)).sum() / total)
    variance = compute_variance(design, design.weights * (values / scale - mean) / total)
    reach = compute_t_quantile(design.degrees) * sqrt(variance)
    return Estimate(mean * scale, (mean - reach) * scale, (mean + reach) * scale, design.size)


def subtract_estimates(first: Estimate, second: Estimate) -> Estimate:
    """`second - first` of independent sets, from the intervals of both: Newcombe (1998), "Interval estimation for the
    difference between independent proportions", method 10."""
    size = min(first.size, second.size)
    if first.value is None or second.value is None:
        return Estimate(size=size, reason=first.reason or second.reason)
    change = second.value - first.value
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Estimate(change, size=size, reason=first.reason or second.reason)
    low = change - sqrt((second.value - second.low) ** 2 + (first.high - first.value) ** 2)
    high = change + sqrt((second.high - second.value) ** 2 + (first.value - first.low) ** 2)
    return Estimate(change, low, high, size)
