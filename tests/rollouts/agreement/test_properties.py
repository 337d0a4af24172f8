"""Properties of all inputs: bounds, symmetry, and equality with the textbook definition, pair by pair."""

from __future__ import annotations

import random
from dataclasses import astuple
from itertools import combinations, permutations
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.agreement import Agreement, Estimate, ItemAnswer, measure_agreement
from rollouts.agreement.answers import AnswerTable, build_table
from rollouts.agreement.coefficients import Ratio, compute_alpha
from rollouts.agreement.distances import choose_distance

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "choice": st.sampled_from("abc"),
    "yes-no": st.booleans(),
    "rating": st.integers(1, 5),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "choices": st.frozensets(st.sampled_from("abcd")),
}
KIND_AND_ANSWERS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(
            st.builds(
                ItemAnswer, st.integers(0, 14), st.sampled_from(["ann", "bob", "cy", "di"]), st.none() | VALUES[kind]
            ),
            max_size=60,
            unique_by=lambda answer: (answer.item, answer.person),
        ),
    )
)


def list_estimates(result: Agreement) -> list[Estimate]:
    return [
        result.percent,
        result.alpha,
        result.fleiss,
        *(e for pair in result.pairs for e in (pair.percent, pair.kappa)),
    ]


@settings(max_examples=60, deadline=None)
@given(KIND_AND_ANSWERS)
def test_estimates_are_in_bounds_and_never_nan(kind_and_answers: tuple[str, list[ItemAnswer]]) -> None:
    kind, answers = kind_and_answers
    result = measure_agreement(answers, kind)
    for estimate in list_estimates(result):
        numbers = [number for number in astuple(estimate)[:3] if number is not None]
        assert all(map(isfinite, numbers))
        assert (estimate.value is not None and estimate.low is not None) or estimate.reason
        if estimate.low is not None and estimate.high is not None and estimate.value is not None:
            assert -1 <= estimate.low <= max(-1, estimate.value + 1e-9) and estimate.value <= estimate.high + 1e-9
        assert estimate.value is None or estimate.value <= 1 + 1e-9
    assert result.percent.value is None or 0 <= result.percent.value <= 1


@settings(max_examples=50, deadline=None)
@given(KIND_AND_ANSWERS, st.integers(0, 5))
def test_order_and_names_do_not_matter(kind_and_answers: tuple[str, list[ItemAnswer]], seed: int) -> None:
    kind, answers = kind_and_answers
    shuffled = [ItemAnswer(f"item {-answer.item}", answer.person[::-1], answer.value) for answer in answers]
    random.Random(seed).shuffle(shuffled)
    for one, other in zip(
        *(list_estimates(measure_agreement(each, kind))[:3] for each in (answers, shuffled)), strict=True
    ):
        assert one.reason == other.reason
        assert astuple(one)[:3] == pytest.approx(astuple(other)[:3], nan_ok=False, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(KIND_AND_ANSWERS.filter(lambda pair: pair[0] != "number"))
def test_alpha_equals_its_definition(kind_and_answers: tuple[str, list[ItemAnswer]]) -> None:
    """Krippendorff (2011), 1 - Do / De, with loops over all pairs."""
    kind, answers = kind_and_answers
    alpha = measure_agreement(answers, kind).alpha.value
    if alpha is not None:
        assert alpha == pytest.approx(compute_alpha_by_definition(kind, answers), abs=1e-9)


def compute_alpha_by_definition(kind: str, answers: list[ItemAnswer]) -> float:
    by_item: dict[Any, list[Any]] = {}
    for item, _, value in answers:
        if value is not None:
            by_item.setdefault(item, []).append(value)
    units = [values for values in by_item.values() if len(values) > 1]
    everything = [value for values in units for value in values]

    def distance(first: Any, second: Any) -> float:
        if kind == "rating":
            low, high = sorted((first, second))
            between = sum(low <= value <= high for value in everything)
            return float((between - (everything.count(low) + everything.count(high)) / 2) ** 2) if low < high else 0
        if kind == "choices" and first != second:
            common, union = len(first & second), len(first | second)
            factor = 2 / 3 if first < second or second < first else 1 / 3
            return 1 - common / union * factor
        return float(first != second)

    observed = sum(distance(*pair) / (len(values) - 1) for values in units for pair in permutations(values, 2))
    expected = sum(distance(*pair) for pair in permutations(everything, 2))
    return 1 - (len(everything) - 1) * observed / expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), min_size=2, max_size=30))
def test_kappa_of_two_people_is_alike_in_both_directions(values: list[tuple[str, str]]) -> None:
    def kappa(pairs: list[tuple[str, str]]) -> Estimate:
        answers = [
            ItemAnswer(item, name, value)
            for item, pair in enumerate(pairs)
            for name, value in zip("xy", pair, strict=True)
        ]
        return measure_agreement(answers, "choice").pairs[0].kappa

    one, other = kappa(values), kappa([(second, first) for first, second in values])
    assert (one.value is None) == (other.value is None)
    if one.value is not None:
        assert one.value == pytest.approx(other.value)


def test_all_pairs_are_counted_once() -> None:
    people = ["ann", "bob", "cy", "di"]
    result = measure_agreement([ItemAnswer(item, person, "a") for item in range(3) for person in people], "choice")
    assert [(pair.first, pair.second, pair.items) for pair in result.pairs] == [
        (*pair, 3) for pair in combinations(people, 2)
    ]


@settings(max_examples=60, deadline=None)
@given(KIND_AND_ANSWERS)
def test_the_jackknife_leaves_out_each_item(kind_and_answers: tuple[str, list[ItemAnswer]]) -> None:
    """Exactly; for ratings, whose ranks move too, to first order: see the next test."""
    kind, answers = kind_and_answers
    table = build_table(answers, kind)
    counts = np.bincount(table.value, minlength=len(table.values)).astype(np.float64)
    distance = choose_distance(kind, table.values, counts)
    ratio = compute_alpha(table.pairs, distance) if table.items else None
    if ratio is None or kind == "rating":
        return
    for number in range(table.items):
        kept = table.item != number
        item = np.unique(table.item[kept], return_inverse=True)[1]
        rest = AnswerTable(table.people, table.values, item, table.person[kept], table.value[kept], table.items - 1)
        other = compute_alpha(rest.pairs, distance) if rest.items else None
        if other is None:
            assert not np.isfinite(ratio.without[number])
        else:
            assert ratio.without[number] == pytest.approx(other.value, abs=1e-6, rel=1e-6)


def test_the_jackknife_of_ratings_follows_the_ranks() -> None:
    generator = np.random.default_rng(4)
    values = generator.choice(5, size=300, p=[0.05, 0.05, 0.1, 0.2, 0.6])
    both = np.stack([values, np.where(generator.random(300) < 0.7, values, generator.integers(5, size=300))], axis=1)

    def measure(chosen: npt.NDArray[np.int64]) -> Ratio:
        item = np.repeat(np.arange(len(chosen)), 2)
        table = AnswerTable(["a", "b"], list(range(5)), item, np.tile([0, 1], len(chosen)), chosen.ravel(), len(chosen))
        ratio = compute_alpha(table.pairs, choose_distance("rating", table.values, np.bincount(chosen.ravel()) * 1.0))
        assert ratio is not None
        return ratio

    exact = np.array([measure(np.delete(both, item, axis=0)).value for item in range(300)])
    shifts = measure(both).without - exact
    assert np.abs(shifts - shifts.mean()).max() < 0.02 * np.ptp(exact)
