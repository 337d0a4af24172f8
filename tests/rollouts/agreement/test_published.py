"""Coefficients equal worked examples of the publications that introduced them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rollouts.agreement import (
    Estimate,
    ItemAnswer,
    Marks,
    PairSigns,
    build_order_signs,
    measure_agreement,
    measure_order_agreement,
    measure_span_agreement,
)
from rollouts.agreement.coefficients import Ratio, compute_kappa
from rollouts.agreement.distances import NominalDistance, compute_masi
from rollouts.agreement.intervals import compute_wilson
from rollouts.agreement.rates import subtract_estimates


def read_matrix(text: str) -> list[ItemAnswer]:
    """One line for each person, one column for each item."""
    return [
        ItemAnswer(item, f"person {person}", None if value == "." else value)
        for person, line in enumerate(text.strip().splitlines())
        for item, value in enumerate(line.split())
    ]


def convert_to_numbers(answers: Sequence[ItemAnswer]) -> list[ItemAnswer]:
    return [answer._replace(value=answer.value and int(answer.value)) for answer in answers]


def read_counts(rows: Sequence[Sequence[int]]) -> list[ItemAnswer]:
    """How many people chose each category, for each item."""
    return [
        ItemAnswer(item, f"person {person}", str(category))
        for item, row in enumerate(rows)
        for person, category in enumerate(np.repeat(np.arange(len(row)), row).tolist())
    ]


def read_table(shares: Sequence[Sequence[float]], items: int) -> tuple[list[ItemAnswer], np.ndarray, np.ndarray]:
    """The answers of two people with these shares of both answers."""
    counts = np.rint(np.array(shares) * items).astype(int)
    first, second = (np.repeat(codes.ravel(), counts.ravel()) for codes in np.indices(counts.shape))
    answers = [ItemAnswer(item, "ann", str(code)) for item, code in enumerate(first.tolist())]
    return [*answers, *(ItemAnswer(item, "bob", str(code)) for item, code in enumerate(second.tolist()))], first, second


# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", data A, B, and C to E.
BINARY = read_matrix("0 1 0 0 0 0 0 0 1 0\n1 1 1 0 0 1 0 0 0 0")
TWO_OBSERVERS = read_matrix("a a b b d c c c e d d a\nb a b b b c c c e d d d")
FOUR_OBSERVERS = read_matrix("""
1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 .
""")
# Wikipedia, "Krippendorff's alpha", a computational example (2024).
THREE_CODERS = read_matrix("""
. . . . . 3 4 1 2 1 1 3 3 . 3
1 . 2 1 3 3 4 3 . . . . . . .
. . 2 1 3 4 4 . 2 1 1 3 3 . 4
""")


@pytest.mark.parametrize(
    ("answers", "kind", "alpha"),
    [
        (BINARY, "choice", 0.095),
        (TWO_OBSERVERS, "choice", 0.692),
        (FOUR_OBSERVERS, "choice", 0.743),
        (convert_to_numbers(FOUR_OBSERVERS), "rating", 0.815),
        (convert_to_numbers(FOUR_OBSERVERS), "number", 0.849),
        (THREE_CODERS, "choice", 0.691),
        (convert_to_numbers(THREE_CODERS), "number", 0.811),
    ],
)
def test_krippendorffs_alpha(answers: list[ItemAnswer], kind: str, alpha: float) -> None:
    assert measure_agreement(answers, kind).alpha.value == pytest.approx(alpha, abs=0.0005)


# Fleiss (1971), "Measuring nominal scale agreement among many raters", table 1: 30 patients, 6 psychiatrists.
DIAGNOSES = """
00060 03003 01401 00006 03030 20400 00402 20310 20040 00006 10050 11040 03300 10050 02031
00501 30012 51000 02040 10203 00006 01050 02013 20040 10041 05010 40002 02040 10500 00006
"""
# Wikipedia, "Fleiss' kappa", worked example (2024): 10 items, 14 raters.
WORKED = [[0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
          [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]]  # fmt: skip


def test_fleiss_kappa_of_psychiatric_diagnoses() -> None:
    result = measure_agreement(read_counts([[int(count) for count in row] for row in DIAGNOSES.split()]), "choice")
    assert result.percent.value == pytest.approx(0.555, abs=0.001)
    assert result.fleiss.value == pytest.approx(0.430, abs=0.0005)


def test_fleiss_kappa_of_the_worked_example() -> None:
    result = measure_agreement(read_counts(WORKED), "choice")
    assert result.percent.value == pytest.approx(0.378, abs=0.0005)
    assert result.fleiss.value == pytest.approx(0.210, abs=0.0005)


# Cohen (1960), "A coefficient of agreement for nominal scales", and (1968), "Weighted kappa": table of 200 cases.
COHEN = [[0.44, 0.07, 0.09], [0.05, 0.20, 0.05], [0.01, 0.03, 0.06]]
# Fleiss, Cohen, Everitt (1969), "Large sample standard errors of kappa and weighted kappa".
EVERITT = [[0.53, 0.05, 0.02], [0.11, 0.14, 0.05], [0.01, 0.06, 0.03]]


def test_cohens_kappa() -> None:
    result = measure_agreement(read_table(COHEN, 200)[0], "choice")
    assert result.pairs[0].kappa.value == pytest.approx(0.492, abs=0.0005)
    assert result.percent.value == pytest.approx(0.70)


class CohensWeights:
    level, maximum = "", 6.0
    matrix = np.array([[0, 1, 3], [1, 0, 6], [3, 6, 0]], np.float64)

    def measure(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return self.matrix[first, second]

    def sum_distances(self, counts: np.ndarray) -> np.ndarray:
        return self.matrix @ counts


def test_weighted_kappa() -> None:
    _, first, second = read_table(COHEN, 200)
    ratio = compute_kappa(first, second, 3, CohensWeights())
    assert ratio is not None and 1 - ratio.value == pytest.approx(0.348, abs=0.0005)


def test_the_jackknife_has_the_published_standard_error_of_kappa() -> None:
    _, first, second = read_table(EVERITT, 200)
    ratio = measure_ratio(first, second)
    assert 1 - ratio.value == pytest.approx(0.429, abs=0.0005)
    assert 199 / 200 * ((ratio.without - ratio.without.mean()) ** 2).sum() == pytest.approx(0.002885, rel=0.03)


def measure_ratio(first: np.ndarray, second: np.ndarray) -> Ratio:
    ratio = compute_kappa(first, second, 3, NominalDistance())
    assert ratio is not None
    return ratio


def test_masi() -> None:
    """Passonneau (2006): 1 - Jaccard × monotonicity."""
    sets = [frozenset("ab"), frozenset("a"), frozenset("bc"), frozenset("d"), frozenset()]
    expected = [
        [0, 1 - 1 / 2 * 2 / 3, 1 - 1 / 3 * 1 / 3, 1, 1],
        [1 - 1 / 2 * 2 / 3, 0, 1, 1, 1],
        [1 - 1 / 3 * 1 / 3, 1, 0, 1, 1],
        [1, 1, 1, 0, 1],
        [1, 1, 1, 1, 0],
    ]
    assert compute_masi(sets) == pytest.approx(np.array(expected))


# Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
@pytest.mark.parametrize(
    ("hits", "size", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval(hits: int, size: int, low: float, high: float) -> None:
    assert compute_wilson(hits / size, size) == pytest.approx((low, high), abs=0.00005)


# Newcombe (1998), "Interval estimation for the difference between independent proportions", table II, method 10.
@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
    ],
)
def test_interval_of_a_difference(first: tuple[int, int], second: tuple[int, int], low: float, high: float) -> None:
    estimates = [Estimate(hits / size, *compute_wilson(hits / size, size), size) for hits, size in (second, first)]
    change = subtract_estimates(*estimates)
    assert (change.low, change.high) == pytest.approx((low, high), abs=0.00006)


def test_overlap_f1() -> None:
    """Twice the common characters over all marked ones: 2 × 4 / (10 + 6), and 0 if only one marked something."""
    marks = [Marks(1, "ann", ((0, 6), (4, 10))), Marks(1, "bob", ((6, 12),)), Marks(2, "ann", ((0, 5),)),
             Marks(2, "bob", ()), Marks(3, "ann", ()), Marks(3, "bob", ())]  # fmt: skip
    result = measure_span_agreement(marks)
    assert (result.items, result.overlap.value, result.different) == (2, pytest.approx(0.25), (2,))


def build_order(ranks: Sequence[float]) -> dict[tuple[str, str], int]:
    """The signs of an order with these ranks of the responses a, b, c and so on; 1 is the best."""
    names = [chr(ord("a") + at) for at in range(len(ranks))]
    return build_order_signs(
        [[name for name, own in zip(names, ranks, strict=True) if own == rank] for rank in sorted(set(ranks))]
    )


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        # Kendall (1970), "Rank Correlation Methods", 4th edition, example 3.1: 33 / sqrt(41 * 36).
        ([1, 2.5, 2.5, 4.5, 4.5, 6.5, 6.5, 8, 9.5, 9.5], [1, 2, 4.5, 4.5, 4.5, 4.5, 8, 8, 8, 10], 0.859),
        # The example of scipy.stats.kendalltau, scipy 1.14.
        ([12, 2, 1, 12, 2], [1, 4, 7, 1, 0], -0.4714),
    ],
)
def test_kendalls_tau_b(first: Sequence[float], second: Sequence[float], tau: float) -> None:
    answers = [PairSigns(1, "ann", build_order(first)), PairSigns(1, "bob", build_order(second))]
    assert measure_order_agreement(answers).tau.value == pytest.approx(tau, abs=0.0005)


def test_tau_of_some_pairs_and_of_three_people() -> None:
    ann, bob, cat = {("a", "b"): 1, ("c", "d"): 1}, {("a", "b"): -1, ("c", "d"): 1}, {("a", "b"): 0}
    rows = [PairSigns(item, name, signs) for item in range(20) for name, signs in (("ann", ann), ("bob", bob))]
    found = measure_order_agreement([*rows, PairSigns(0, "cat", cat), PairSigns(30, "cat", cat)])
    assert (found.items, len(found.pairs), found.pairs[0].items) == (20, 3, 20)
    assert found.by_item[0].same == pytest.approx(0.5 / 3) and next(iter(found.by_item)) == 0
    assert found.tau.value == 0 and found.tau.low is not None and -0.5 < found.tau.low < 0 < (found.tau.high or 0) < 0.5
    assert found.percent.value == pytest.approx((19 * 0.5 + 0.5 / 3) / 20)
    assert found.pairs[1].tau.explanation == "Not defined: someone finds all responses equal."
