"""Agreement of people on which responses of a group are better: of whole orders, or of some pairs.

An answer is a sign for each pair of responses: 1 if the first one is better, -1 if the second one is, 0 if they are
equal. Kendall's tau-b of two people is the correlation of their signs, so it is the same for an order and for all its
pairs, and it is defined for some of the pairs too (Kendall 1945; Daniels 1944 for the general form).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import NamedTuple

import numpy as np

from rollouts.agreement.coefficients import Ratio, average_ratio
from rollouts.agreement.estimates import Estimate, Reason
from rollouts.agreement.intervals import estimate_agreement

Pair = tuple[str, str]


class PairSigns(NamedTuple):
    """What one person said about the pairs of one item. Each pair is sorted."""

    item: Hashable
    person: str
    signs: Mapping[Pair, int]


class Compared(NamedTuple):
    """Two people on one item: the share of common pairs on which they agree, and tau-b; None if one of them finds all
    equal."""

    same: float
    tau: float | None


@dataclass(frozen=True, slots=True)
class PeopleOrders:
    """Agreement of two people on the items that both answered."""

    first: str
    second: str
    items: int
    percent: Estimate
    tau: Estimate


@dataclass(frozen=True, slots=True)
class OrderAgreement:
    """`items` have answers of two or more people. Each item counts the same, and in it each pair of people. `by_item`
    has the mean of its pairs of people, the lowest agreement first."""

    items: int
    percent: Estimate
    tau: Estimate
    pairs: tuple[PeopleOrders, ...]
    by_item: dict[Hashable, Compared]


def build_order_signs(places: Sequence[Iterable[str]]) -> dict[Pair, int]:
    """The signs of an order: best first, equal ones at one place."""
    ranked = [(sample, rank) for rank, place in enumerate(places) for sample in place]
    return {
        (first, second): (rank < other) - (rank > other)
        for (first, rank), (second, other) in combinations(sorted(ranked), 2)
    }


def compare_signs(first: Mapping[Pair, int], second: Mapping[Pair, int]) -> Compared | None:
    """None if the people have no pair in common."""
    common = [(sign, second[pair]) for pair, sign in first.items() if pair in second]
    if not common:
        return None
    same = sum(sign == other for sign, other in common) / len(common)
    untied = sum(sign != 0 for sign, _other in common) * sum(other != 0 for _sign, other in common)
    tau = sum(sign * other for sign, other in common) / sqrt(untied) if untied else None
    return Compared(same, tau)


def average(compared: Iterable[Compared]) -> Compared:
    rows = list(compared)
    taus = [row.tau for row in rows if row.tau is not None]
    return Compared(sum(row.same for row in rows) / len(rows), sum(taus) / len(taus) if taus else None)


def measure_order_agreement(answers: Iterable[PairSigns]) -> OrderAgreement:
    """The last answer of each person to each item counts."""
    by_item: dict[Hashable, dict[str, Mapping[Pair, int]]] = defaultdict(dict)
    for item, person, signs in answers:
        by_item[item][person] = signs
    of_items: dict[Hashable, Compared] = {}
    of_people: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for item, people in by_item.items():
        found = []
        for first, second in combinations(sorted(people), 2):
            if compared := compare_signs(people[first], people[second]):
                of_people[first, second].append(compared)
                found.append(compared)
        if found:
            of_items[item] = average(found)
    worst = sorted(of_items.items(), key=lambda row: (row[1].same, 1.0 if row[1].tau is None else row[1].tau))
    return OrderAgreement(
        items=len(of_items),
        percent=estimate_same(of_items.values()),
        tau=estimate_tau(of_items.values()),
        pairs=tuple(
            PeopleOrders(first, second, len(rows), estimate_same(rows), estimate_tau(rows))
            for (first, second), rows in sorted(of_people.items())
        ),
        by_item=dict(worst),
    )


def estimate_same(rows: Iterable[Compared]) -> Estimate:
    different = np.array([1 - row.same for row in rows])
    return estimate_agreement(average_ratio(different)) if len(different) else Estimate(reason=Reason.NO_PAIRS)


def estimate_tau(rows: Iterable[Compared]) -> Estimate:
    """The mean of tau over items. `(1 - tau) / 2` is a share from 0 to 1, so it has the interval of one."""
    rows = list(rows)
    different = np.array([(1 - row.tau) / 2 for row in rows if row.tau is not None])
    if not len(different):
        return Estimate(reason=Reason.ALL_EQUAL if rows else Reason.NO_PAIRS)
    share = average_ratio(different)
    return estimate_agreement(Ratio(2 * share.value, 2 * share.without, share.observed, 0.5))
