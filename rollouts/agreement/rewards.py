"""Compares people's labels with the reward: a sample is rewarded if its score reaches a threshold, as `score>=` of the
query language finds it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rollouts.agreement import rates
from rollouts.agreement.answers import BoolArray, FloatArray
from rollouts.agreement.estimates import Estimate
from rollouts.agreement.rates import Design
from rollouts.lib import compute_tolerance


@dataclass(frozen=True)
class LabelledSamples:
    """Samples that people called good or bad, as columns of equal length.

    `probabilities` are those of the sampling, 1 / weight. NaN is a sample that was picked by hand: it is in the lists
    and in no estimate. `strata` name the part of the sampling that a sample was drawn in, for example its queue and
    step. Samples of a `group`, for example of one prompt, depend on each other.
    """

    ids: Sequence[Hashable]
    scores: FloatArray
    good: BoolArray
    probabilities: FloatArray
    strata: Sequence[Hashable] | None = None
    groups: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if columns differ in length."""
        columns = (self.scores, self.good, self.probabilities, self.strata, self.groups)
        if any(column is not None and len(column) != len(self.ids) for column in columns):
            raise ValueError("All columns of labelled samples need the same length.")

    @cached_property
    def drawn(self) -> LabelledSamples:
        """Those that estimates may use: drawn with a known probability, and with a score."""
        return self.select(~np.isnan(self.probabilities) & np.isfinite(self.scores))

    @cached_property
    def design(self) -> Design:
        return rates.build_design(self.probabilities, self.strata, self.groups)

    def select(self, mask: BoolArray) -> LabelledSamples:
        rows = np.flatnonzero(mask).tolist()
        return LabelledSamples(
            [self.ids[row] for row in rows],
            self.scores[mask],
            self.good[mask],
            self.probabilities[mask],
            None if self.strata is None else [self.strata[row] for row in rows],
            None if self.groups is None else [self.groups[row] for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """Of the confusion: labelled samples, their share of all samples, and about how many samples that are."""

    labelled: int
    share: Estimate
    total: float | None


@dataclass(frozen=True, slots=True)
class RewardCheck:
    """`precision`: good, of the rewarded. `recall`: rewarded, of the good. `wrong_of_rewarded` is 1 - precision and
    `unrewarded_of_good` is 1 - recall. `rewarded_of_bad` is the false positive rate.

    `population` is the number of samples that the `labelled` ones stand for, `effective_size` how many equally weighted
    ones would tell as much, `hand_picked` the number that is in the lists only. `suspected_hacks` are ids of rewarded
    bad samples, highest score first, `missed_good` of unrewarded good ones, lowest score first.
    """

    threshold: float
    labelled: int
    hand_picked: int
    population: float
    effective_size: float
    rewarded_good: Cell
    rewarded_bad: Cell
    unrewarded_good: Cell
    unrewarded_bad: Cell
    precision: Estimate
    recall: Estimate
    wrong_of_rewarded: Estimate
    unrewarded_of_good: Estimate
    rewarded_of_bad: Estimate
    accuracy: Estimate
    good: Estimate
    rewarded: Estimate
    mean_score: Estimate
    suspected_hacks: tuple[Hashable, ...]
    missed_good: tuple[Hashable, ...]


RATES = ("precision", "recall", "wrong_of_rewarded", "unrewarded_of_good", "rewarded_of_bad", "accuracy", "good",
         "rewarded", "mean_score")  # fmt: skip


def check_reward(samples: LabelledSamples, threshold: float) -> RewardCheck:
    """Confusion of label and score. Samples without a score are left out."""
    drawn = samples.drawn
    design, good, rewarded = drawn.design, drawn.good, find_rewarded(drawn.scores, threshold)
    everything = np.ones(design.size, bool)

    def rate(hits: BoolArray, base: BoolArray = everything) -> Estimate:
        return rates.estimate_rate(design, hits & base, base)

    def cell(mask: BoolArray) -> Cell:
        share = rate(mask)
        total = float(design.weights[mask].sum()) if share.value is not None else None
        return Cell(int(mask.sum()), share, total)

    all_rewarded = find_rewarded(samples.scores, threshold)
    return RewardCheck(
        threshold=threshold,
        labelled=design.size,
        hand_picked=int(np.isnan(samples.probabilities).sum()),
        population=float(design.weights.sum()),
        effective_size=rates.compute_effective_size(design.weights),
        rewarded_good=cell(rewarded & good),
        rewarded_bad=cell(rewarded & ~good),
        unrewarded_good=cell(~rewarded & good),
        unrewarded_bad=cell(~rewarded & ~good),
        precision=rate(good, rewarded),
        recall=rate(rewarded, good),
        wrong_of_rewarded=rate(~good, rewarded),
        unrewarded_of_good=rate(~rewarded, good),
        rewarded_of_bad=rate(rewarded, ~good),
        accuracy=rate(rewarded == good),
        good=rate(good),
        rewarded=rate(rewarded),
        mean_score=rates.estimate_mean(design, drawn.scores),
        suspected_hacks=list_ids(samples, all_rewarded & ~samples.good, -samples.scores),
        missed_good=list_ids(samples, ~all_rewarded & ~np.isnan(samples.scores) & samples.good, samples.scores),
    )


def find_rewarded(scores: FloatArray, threshold: float) -> BoolArray:
    """Returns which scores reach the threshold."""
    return np.asarray(scores >= threshold - compute_tolerance(threshold))


def list_ids(samples: LabelledSamples, mask: BoolArray, order: FloatArray) -> tuple[Hashable, ...]:
    rows = np.flatnonzero(mask)
    return tuple(samples.ids[row] for row in rows[np.argsort(order[rows], kind="stable")].tolist())


def check_reward_by(
    samples: LabelledSamples, facet: Sequence[Hashable], threshold: float
) -> dict[Hashable, RewardCheck]:
    """One check for each value of a facet: data sources, runs, or ranges of steps."""
    codes = rates.encode_labels(facet)
    return {
        value: check_reward(samples.select(codes == code), threshold) for code, value in enumerate(dict.fromkeys(facet))
    }


def check_reward_parts(
    samples: LabelledSamples, parts: Mapping[str, FloatArray], thresholds: Mapping[str, float]
) -> dict[str, RewardCheck]:
    """One check for each part of the reward, with its own scores and threshold."""
    return {name: check_reward(replace(samples, scores=scores), thresholds[name]) for name, scores in parts.items()}
