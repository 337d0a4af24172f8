"""Differences of rates between two sets of samples: runs, or ranges of steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rollouts.agreement.answers import BoolArray, FloatArray
from rollouts.agreement.estimates import Estimate
from rollouts.agreement.rates import build_design, estimate_rate, subtract_estimates
from rollouts.agreement.rewards import RATES, RewardCheck


@dataclass(frozen=True, slots=True)
class RateChange:
    """`change` is second - first. `is_clear` if its 95 % interval excludes 0."""

    first: Estimate
    second: Estimate
    change: Estimate

    @property
    def is_clear(self) -> bool:
        return self.change.low is not None and self.change.high is not None and self.change.low * self.change.high > 0


def compare_estimates(first: Estimate, second: Estimate) -> RateChange:
    """Of two sets without common samples."""
    return RateChange(first, second, subtract_estimates(first, second))


def compare_checks(first: RewardCheck, second: RewardCheck) -> dict[str, RateChange]:
    """Each rate of two reward checks, by the name of its field."""
    return {name: compare_estimates(getattr(first, name), getattr(second, name)) for name in RATES}


def measure_rate(
    hits: BoolArray,
    probabilities: FloatArray,
    strata: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Estimate:
    """The share of samples with a label or facet, from samples that were drawn with these probabilities."""
    return estimate_rate(build_design(probabilities, strata, groups), hits)
