"""How the errors of the reward depend on the threshold, and which threshold separates good from bad samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollouts.agreement.answers import FloatArray
from rollouts.agreement.estimates import Estimate
from rollouts.agreement.rates import estimate_rate
from rollouts.agreement.rewards import LabelledSamples, find_rewarded
from rollouts.lib import compute_tolerance

MAX_THRESHOLDS = 60
MIN_SEPARATION = 0.5  # of Youden's index (1950); below it no threshold separates good from bad


@dataclass(frozen=True, slots=True)
class ThresholdErrors:
    """`rewarded_of_bad`: the share of bad samples that the reward calls good. `unrewarded_of_good`: the share of good
    samples that it calls bad."""

    threshold: float
    rewarded_of_bad: Estimate
    unrewarded_of_good: Estimate


def sweep_thresholds(samples: LabelledSamples) -> tuple[ThresholdErrors, ...]:
    """At each distinct score, or at 60 quantiles of more scores, and just above the highest one."""
    drawn = samples.drawn
    points = []
    for threshold in choose_thresholds(drawn.scores):
        rewarded = find_rewarded(drawn.scores, threshold)
        points.append(
            ThresholdErrors(
                threshold,
                estimate_rate(drawn.design, rewarded & ~drawn.good, ~drawn.good),
                estimate_rate(drawn.design, ~rewarded & drawn.good, drawn.good),
            )
        )
    return tuple(points)


def choose_thresholds(scores: FloatArray) -> list[float]:
    distinct = np.unique(scores)
    if not len(distinct):
        return []
    if len(distinct) > MAX_THRESHOLDS:
        distinct = np.unique(np.quantile(distinct, np.linspace(0, 1, MAX_THRESHOLDS)))
    return [*distinct.tolist(), compute_threshold_above(float(distinct[-1]))]


def compute_threshold_above(score: float) -> float:
    """Returns a threshold that this score does not reach."""
    return score + 2 * compute_tolerance(score)


def find_best_threshold(samples: LabelledSamples) -> float | None:
    """The threshold with the fewest errors, good and bad samples weighted the same. None if no threshold separates
    them, or if there are too few labels to tell."""
    best, found = MIN_SEPARATION, None
    for point in sweep_thresholds(samples):
        wrong, missed = point.rewarded_of_bad.value, point.unrewarded_of_good.value
        if wrong is not None and missed is not None and 1 - wrong - missed > best:
            best, found = 1 - wrong - missed, point.threshold
    return found
