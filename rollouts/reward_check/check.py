"""The report of a run or a range of its steps, and the change between two of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from rollouts import agreement
from rollouts.agreement import LabelledSamples, RateChange, RewardCheck
from rollouts.reward_check.labelled import LabelledRun, get_number

MAX_PARTS: Final = 12
MAX_SOURCES: Final = 12  # those with the most labels


@dataclass(frozen=True, slots=True)
class RewardReport:
    """`best` is the threshold that separates good from bad best, None if none does. `parts` and `sources` have a check
    for each part of the reward, with a threshold of its own, and for each data source."""

    check: RewardCheck
    best: float | None
    parts: dict[str, RewardCheck]
    sources: dict[str, RewardCheck]


def build_report(labelled: LabelledRun, threshold: float | None = None) -> RewardReport:
    """Without a threshold it is the best one, else the middle of the scores."""
    samples = labelled.samples
    best = agreement.find_best_threshold(samples)
    if threshold is None:
        threshold = choose_threshold(samples, best)
    return RewardReport(
        agreement.check_reward(samples, threshold),
        best,
        check_parts(labelled),
        check_sources(labelled, threshold),
    )


def choose_threshold(samples: LabelledSamples, best: float | None = None) -> float:
    scores = samples.scores[np.isfinite(samples.scores)]
    if best is not None:
        return best
    return float(scores.min() + scores.max()) / 2 if len(scores) else 0.5


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
