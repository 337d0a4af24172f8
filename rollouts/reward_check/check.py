"""The report of a run or a range of its steps, and the change between two of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollouts import agreement
from rollouts.agreement import LabelledSamples, RateChange, RewardCheck
from rollouts.reward_check.labelled import LabelledRun, get_number

MAX_PARTS: Final = 12
MAX_SOURCES: Final = 12  # those with the most labels
DEFAULT_THRESHOLD: Final = 0.5


@dataclass(frozen=True, slots=True)
class RewardReport:
    """`best` is the threshold that separates good from bad best, None if none does. `parts` and `sources` have a check
    for each part of the reward, with a threshold of its own, and for each data source. `outdated` and
    `undecided`: see `LabelledRun`."""

    check: RewardCheck
    best: float | None
    parts: dict[str, RewardCheck]
    sources: dict[str, RewardCheck]
    outdated: int
    undecided: int


def build_report(labelled: LabelledRun, threshold: float | None = None) -> RewardReport:
    """Without a threshold it is the best one, else that of the samples that count as correct."""
    samples = labelled.samples
    best = agreement.find_best_threshold(samples)
    if threshold is None:
        is_correct = np.array([bool(row.correct) for row in labelled.rows], np.bool_)
        threshold = choose_threshold(samples, best, is_correct if any_known(labelled) else None)
    return RewardReport(
        agreement.check_reward(samples, threshold),
        best,
        check_parts(labelled),
        check_sources(labelled, threshold),
        labelled.outdated,
        labelled.undecided,
    )


def any_known(labelled: LabelledRun) -> bool:
    """Returns whether the project's rule says of any sample whether it is correct."""
    return any(row.correct is not None for row in labelled.rows)


def choose_threshold(
    samples: LabelledSamples, best: float | None, is_correct: NDArray[np.bool_] | None = None
) -> float:
    """Returns the best threshold. If none separates good from bad, returns the lowest score of a correct sample, if it
    is known which are, else the middle of the scores. Equal scores below 0.5 reward nothing."""
    if best is not None:
        return best
    is_finite = np.isfinite(samples.scores)
    scores = samples.scores[is_finite]
    if not len(scores):
        return DEFAULT_THRESHOLD
    low, high = float(scores.min()), float(scores.max())
    if is_correct is not None:
        correct = samples.scores[is_finite & is_correct]
        above = agreement.compute_threshold_above(high)
        return float(correct.min()) if len(correct) else max(DEFAULT_THRESHOLD, above)
    return (low + high) / 2 if low < high else max(DEFAULT_THRESHOLD, high)


def check_parts(labelled: LabelledRun) -> dict[str, RewardCheck]:
    counts = Counter(name for row in labelled.rows for name in row.parts or ())
    checks = {}
    for name, _count in sorted(counts.most_common(MAX_PARTS)):
        scores = np.array([get_number((row.parts or {}).get(name)) for row in labelled.rows], np.float64)
        s = labelled.samples
        samples = LabelledSamples(s.ids, scores, s.good, s.probabilities, s.strata, s.groups)
        threshold = choose_threshold(samples, agreement.find_best_threshold(samples))
        checks[name] = agreement.check_reward(samples, threshold)
    return checks


def check_sources(labelled: LabelledRun, threshold: float) -> dict[str, RewardCheck]:
    """Empty if all samples have the same source."""
    sources = [row.data_source for row in labelled.rows]
    most = [source for source, _count in Counter(sources).most_common(MAX_SOURCES)]
    if len(most) < 2:
        return {}
    checks = agreement.check_reward_by(labelled.samples, sources, threshold)
    return {source: checks[source] for source in most}


def compare_reports(first: RewardReport, second: RewardReport) -> dict[str, RateChange]:
    """Returns the change of each rate, by its name in `agreement.RATES`."""
    return agreement.compare_checks(first.check, second.check)
