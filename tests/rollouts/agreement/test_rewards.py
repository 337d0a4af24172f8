"""People compared with the reward: confusion, weights, lists, thresholds, and differences between two sets."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.agreement import (
    RATES,
    Estimate,
    LabelledSamples,
    Reason,
    check_reward,
    check_reward_by,
    check_reward_parts,
    compare_checks,
    compare_estimates,
    compute_threshold_above,
    find_best_threshold,
    measure_rate,
    sweep_thresholds,
)
from rollouts.agreement.rates import build_design, collapse_strata, compute_variance


def build_samples(*blocks: tuple[int, float, bool, float]) -> LabelledSamples:
    """Blocks of equal samples: their number, score, whether people call them good, and sampling probability."""
    rows = [row[1:] for row in blocks for _ in range(row[0])]
    scores, good, probabilities = (np.array(column) for column in zip(*rows, strict=True))
    return LabelledSamples(list(range(len(rows))), scores, good.astype(bool), probabilities)


SAMPLES = build_samples((40, 1.1, True, 0.1), (30, 1.1, False, 0.5), (20, 0.0, False, 0.1), (10, 0.0, True, 0.5))


def test_estimates_are_weighted_by_the_sampling() -> None:
    """40 of 400 good ones, 30 of 60 hacks, 20 of 200 bad ones, 10 of 20 missed ones: of 680 samples."""
    check = check_reward(SAMPLES, 0.5)
    assert (check.labelled, check.population) == (100, pytest.approx(680))
    assert check.effective_size == pytest.approx(680**2 / (60 * 100 + 40 * 4))
    assert (check.rewarded_bad.labelled, check.rewarded_bad.total) == (30, pytest.approx(60))
    assert check.rewarded_bad.share.value == pytest.approx(60 / 680)
    assert check.precision.value == pytest.approx(400 / 460)
    assert check.wrong_of_rewarded.value == pytest.approx(60 / 460)
    assert check.recall.value == pytest.approx(400 / 420)
    assert check.unrewarded_of_good.value == pytest.approx(20 / 420)
    assert check.rewarded_of_bad.value == pytest.approx(60 / 260)
    assert check.accuracy.value == pytest.approx(600 / 680)
    assert check.mean_score.value == pytest.approx(1.1 * 460 / 680)


def test_fewer_than_20_labelled_samples_are_counts_only() -> None:
    check = check_reward(build_samples((19, 1.0, True, 1.0), (21, 0.0, False, 1.0)), 0.5)
    assert (check.precision.reason, check.precision.size) == (Reason.FEW_SAMPLES, 19)
    assert check.rewarded_of_bad.value == 0 and check.accuracy.value == 1
    nothing = check_reward(SAMPLES.select(np.zeros(100, bool)), 0.5)
    assert {getattr(nothing, name).reason for name in RATES} == {Reason.FEW_SAMPLES}
    assert (nothing.rewarded_good.total, nothing.effective_size) == (None, 0)


def test_few_samples_with_nearly_all_of_the_weight_are_counts_only() -> None:
    check = check_reward(build_samples((5, 1.0, True, 0.001), (500, 1.0, True, 1.0)), 0.5)
    assert (check.good.reason, check.good.size) == (Reason.FEW_SAMPLES, 505)


def test_samples_picked_by_hand_are_in_the_lists_only() -> None:
    hand_picked = build_samples((2, 2.0, False, nan), (1, -1.0, True, nan))
    samples = LabelledSamples(
        [*SAMPLES.ids, "hack", "hack 2", "missed"],
        np.concatenate([SAMPLES.scores, hand_picked.scores]),
        np.concatenate([SAMPLES.good, hand_picked.good]),
        np.concatenate([SAMPLES.probabilities, hand_picked.probabilities]),
    )
    check = check_reward(samples, 0.5)
    assert check.hand_picked == 3
    assert check.suspected_hacks[:3] == ("hack", "hack 2", 40) and len(check.suspected_hacks) == 32
    assert check.missed_good[:2] == ("missed", 90) and len(check.missed_good) == 11
    assert [getattr(check, name) for name in RATES] == [getattr(check_reward(SAMPLES, 0.5), name) for name in RATES]


def test_samples_without_a_score_are_left_out() -> None:
    scores = np.where(np.arange(100) < 5, nan, SAMPLES.scores)
    check = check_reward(replace(SAMPLES, scores=scores), 0.5)
    assert check.labelled == 95 and not {0, 1, 2, 3, 4} & {*check.suspected_hacks, *check.missed_good}


@pytest.mark.parametrize("probabilities", [np.full(100, 0.0), np.full(100, -0.5), np.full(3, 1.0)])
def test_invalid_columns_are_refused(probabilities: np.ndarray) -> None:
    with pytest.raises(ValueError, match="probability must be|same length"):
        check_reward(replace(SAMPLES, probabilities=probabilities), 0.5)


def test_huge_scores_have_a_mean() -> None:
    scores = np.where(SAMPLES.good, 1e300, -1e300)
    mean = check_reward(replace(SAMPLES, scores=scores), 0.5).mean_score
    assert mean.value == pytest.approx(1e300 * (420 - 260) / 680) and mean.high is not None and np.isfinite(mean.high)


def test_each_source_and_each_part_of_the_reward_has_its_check() -> None:
    sources = ["math" if row % 2 else "code" for row in range(100)]
    by_source = check_reward_by(SAMPLES, sources, 0.5)
    assert list(by_source) == ["code", "math"] and by_source["math"].labelled == 50
    parts = check_reward_parts(
        SAMPLES, {"format": np.ones(100), "answer": SAMPLES.scores}, {"format": 1, "answer": 0.5}
    )
    assert parts["format"].recall.value == 1 and parts["answer"] == check_reward(SAMPLES, 0.5)


def test_thresholds_from_all_rewarded_to_none() -> None:
    points = sweep_thresholds(SAMPLES)
    assert [point.threshold for point in points[:2]] == [0.0, 1.1]
    assert [point.rewarded_of_bad.value for point in points] == [1, pytest.approx(60 / 260), 0]
    assert [point.unrewarded_of_good.value for point in points] == [0, pytest.approx(20 / 420), 1]
    assert find_best_threshold(SAMPLES) == 1.1
    scores = np.random.default_rng(1).random(400)
    many = LabelledSamples(range(400), scores, scores > 0.5, np.ones(400))
    assert len(sweep_thresholds(many)) == 61


def test_no_threshold_separates_hacks_from_good_answers_of_the_same_score() -> None:
    assert find_best_threshold(build_samples((40, 1.1, True, 1), (30, 1.1, False, 1), (10, 0, False, 1))) is None
    assert find_best_threshold(SAMPLES.select(np.zeros(100, bool))) is None


def test_a_score_that_was_logged_as_float32_reaches_the_threshold_that_people_type() -> None:
    logged = float(np.float32(0.7))
    samples = build_samples((40, logged, True, 1), (30, logged - 0.01, True, 1), (30, 0.0, False, 1))
    check = check_reward(samples, 0.7)
    assert logged < 0.7 and (check.rewarded_good.labelled, len(check.missed_good)) == (40, 30)


@pytest.mark.parametrize("score", [-5.0, 0.0, 1.0, 1e7])
def test_no_score_up_to_this_one_reaches_the_threshold_above_it(score: float) -> None:
    check = check_reward(build_samples((30, score, False, 1)), compute_threshold_above(score))
    assert (check.rewarded_bad.labelled, check.suspected_hacks) == (0, ())


def test_strata_explain_variance_and_groups_add_to_it() -> None:
    hits = np.arange(200) % 10 < np.repeat([1, 9], 100)
    probabilities = np.full(200, 0.1)
    simple = measure_rate(hits, probabilities)
    stratified = measure_rate(hits, probabilities, strata=np.repeat(["low", "high"], 100).tolist())
    grouped = measure_rate(np.repeat(hits[::4], 4), probabilities, groups=(np.arange(200) // 4).tolist())
    widths = [each.high - each.low for each in (stratified, simple, grouped) if each.high and each.low]
    assert widths == sorted(widths) and len(widths) == 3 and widths[2] > 1.7 * widths[1]


def test_the_variance_of_a_stratified_mean_is_the_textbook_one() -> None:
    """Cochran (1977), 5.3, without the finite population correction."""
    values, strata = np.array([1.0, 3, 5, 2, 8]), ["a", "a", "a", "b", "b"]
    design = build_design(np.array([0.1, 0.1, 0.1, 0.5, 0.5]), strata)
    expected = 30**2 * values[:3].var(ddof=1) / 3 + 4**2 * values[3:].var(ddof=1) / 2
    assert compute_variance(design, design.weights * values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("strata", "collapsed"),
    [
        ([0, 1, 2, 3], [0, 0, 1, 1]),
        ([0, 1, 2, 3, 4], [0, 0, 1, 1, 1]),
        ([0, 0, 1, 2, 2, 3], [0, 0, 1, 2, 2, 1]),
        ([0, 0, 1], [0, 0, 0]),
        ([0, 1, 1], [0, 0, 0]),
        ([0], [0]),
        ([], []),
    ],
)
def test_strata_of_one_sample_are_joined(strata: list[int], collapsed: list[int]) -> None:
    assert collapse_strata(np.array(strata, np.int64)).tolist() == collapsed


def test_a_clear_difference_excludes_0() -> None:
    better = build_samples((80, 1.1, True, 0.1), (3, 1.1, False, 0.1), (40, 0.0, False, 0.1))
    changes = compare_checks(check_reward(SAMPLES, 0.5), check_reward(better, 0.5))
    assert changes["wrong_of_rewarded"].change.value == pytest.approx(3 / 83 - 60 / 460)
    assert changes["good"].is_clear is False and list(changes) == list(RATES)
    assert compare_estimates(Estimate(0.5, 0.4, 0.6, 50), Estimate(0.9, 0.8, 0.95, 50)).is_clear
    missing = compare_estimates(Estimate(size=3, reason=Reason.FEW_SAMPLES), Estimate(0.9, 0.8, 0.95, 50))
    assert (missing.change.value, missing.change.reason, missing.is_clear) == (None, Reason.FEW_SAMPLES, False)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 120), st.integers(0, 10**6), st.sampled_from([1, 3, 60]), st.booleans())
def test_rates_are_in_bounds_and_do_not_depend_on_the_order(size: int, seed: int, strata: int, grouped: bool) -> None:
    generator = np.random.default_rng(seed)
    scores, good = generator.random(size).round(1), generator.random(size) < generator.random()
    stratum = np.sort(generator.integers(strata, size=size))
    probabilities = generator.uniform(0.01, 1, strata)[stratum]
    groups = generator.integers(10, size=size).tolist() if grouped else None
    samples = LabelledSamples(range(size), scores, good, probabilities, stratum.tolist(), groups)
    check = check_reward(samples, 0.5)
    for name in RATES:
        rate = getattr(check, name)
        numbers = [number for number in astuple(rate)[:3] if number is not None]
        assert np.isfinite(numbers).all() and (len(numbers) == 3 or rate.reason)
        assert numbers == [] or numbers[1] <= numbers[0] <= numbers[2]
        assert name == "mean_score" or all(0 <= number <= 1 for number in numbers)
    order = generator.permutation(size) if strata == 1 else np.arange(size)
    again = check_reward(
        LabelledSamples(order.tolist(), scores[order], good[order], probabilities[order], stratum[order].tolist(),
                        None if groups is None else [groups[row] for row in order.tolist()]), 0.5)  # fmt: skip
    assert astuple(again.precision)[:3] == pytest.approx(astuple(check.precision)[:3])
