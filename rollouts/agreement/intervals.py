"""95 % intervals of shares and of agreement coefficients, without random numbers.

A share `p` with the variance `v` behaves like a binomial share of `p (1 - p) / v` trials: its effective size. Wilson's
interval (1927) of that size is good near 0 and 1, where a bootstrap of few differences is too narrow. See
docs/decisions/agreement.md for the measurement.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np

from rollouts.agreement.coefficients import Ratio
from rollouts.agreement.estimates import MIN_INTERVAL_ITEMS, Estimate, Reason

NORMAL_QUANTILE = NormalDist().inv_cdf(0.975)


def compute_t_quantile(degrees: float) -> float:
    """The 97.5 % quantile of Student's t: expansion of Abramowitz and Stegun (1964), 26.7.5. Exact to 0.5 % from 4
    degrees of freedom, below that tabled."""
    tabled = {1: 12.706, 2: 4.303, 3: 3.182}
    if degrees < 4:
        return tabled[max(1, int(degrees))]
    z = NORMAL_QUANTILE
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def compute_wilson(share: float, size: float, quantile: float = NORMAL_QUANTILE) -> tuple[float, float]:
    """Wilson (1927), "Probable Inference, the Law of Succession, and Statistical Inference"."""
    square = quantile**2 / size
    middle = (share + square / 2) / (1 + square)
    reach = quantile * sqrt(max(0.0, share * (1 - share)) / size + square / size / 4) / (1 + square)
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))


def estimate_agreement(ratio: Ratio) -> Estimate:
    """`1 - ratio` with an interval over items."""
    items = len(ratio.without)
    value = 1 - ratio.value
    if items < MIN_INTERVAL_ITEMS:
        return Estimate(value, size=items, reason=Reason.FEW_ITEMS)
    without = ratio.without[np.isfinite(ratio.without)]
    if len(without) < items:  # without one of the items nothing is left to agree on
        return Estimate(value, size=items, reason=Reason.RARE_VALUES)
    variance = (items - 1) / items * float(((without - without.mean()) ** 2).sum()) * ratio.expected**2
    share = ratio.observed
    size = share * (1 - share) / variance if variance > 0 and 0 < share < 1 else items
    low, high = compute_wilson(share, size, compute_t_quantile(items - 1))
    return Estimate(value, max(-1.0, 1 - high / ratio.expected), 1 - low / ratio.expected, items)
