"""Agreement of people on one question."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollouts.agreement import coefficients
from rollouts.agreement.answers import (
    CHOICES,
    NUMBER_KINDS,
    SINGLE_KINDS,
    TEXT,
    FloatArray,
    IntArray,
    ItemAnswer,
    Pairs,
    build_table,
    normalize_value,
    select_latest,
)
from rollouts.agreement.coefficients import Ratio
from rollouts.agreement.distances import Distance, NumberDistance, choose_distance
from rollouts.agreement.estimates import Estimate, Reason
from rollouts.agreement.intervals import estimate_agreement

MAX_PEOPLE_PAIRS = 300  # pairs of people with the most common items
MAX_CONFUSION_VALUES = 60
MIN_OTHER_ITEMS = 5  # items that have another value than the most frequent one; with fewer, intervals say nothing


@dataclass(frozen=True, slots=True)
class PeoplePair:
    """Agreement of two people on the items that both answered. `kappa` is Cohen's; for numbers and ratings with squared
    differences as weights, for sets of choices with MASI."""

    first: str
    second: str
    items: int
    percent: Estimate
    kappa: Estimate


@dataclass(frozen=True, slots=True)
class Confusion:
    """How often a pair of answers to an item is `values[row]` of the first person by name and `values[column]` of the
    second one. "Cannot judge" is the last value, if anyone answered it. `by_person` says how often each person gave
    each value, in the same items."""

    values: tuple[Any, ...]
    counts: tuple[tuple[int, ...], ...]
    by_person: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """`items` have answers of two or more people, `answered` of at least one. `level` is the level of measurement of
    alpha: nominal, ordinal, interval or set."""

    kind: str
    level: str
    answered: int
    items: int
    answers: int
    people: tuple[str, ...]
    percent: Estimate
    alpha: Estimate
    fleiss: Estimate
    pairs: tuple[PeoplePair, ...]
    confusion: Confusion | None


def measure_agreement(answers: Iterable[ItemAnswer], kind: str) -> Agreement:
    """Agreement on a question of this kind: choice, choices, rating, number, yes-no or text. "Cannot judge", None and
    values that do not fit the kind are missing. Raises ValueError if the kind is unknown."""
    answers = list(answers)
    table = build_table(answers, kind)
    counts = np.bincount(table.value, minlength=len(table.values)).astype(np.float64)
    distance = choose_distance(kind, table.values, counts)
    pairs = table.pairs
    reason = Reason.FREE_TEXT if kind == TEXT else Reason.NO_PAIRS if not table.items else None
    return Agreement(
        kind=kind,
        level="" if kind == TEXT else distance.level,
        answered=len({item for item, _, value in answers if value is not None}),
        items=table.items,
        answers=len(table.item),
        people=tuple(table.people),
        percent=Estimate(reason=reason) if reason else estimate_percent(pairs),
        alpha=Estimate(size=table.items, reason=reason) if reason else estimate_alpha(pairs, distance),
        fleiss=Estimate(size=table.items, reason=reason) if reason else estimate_fleiss(pairs, distance, kind),
        pairs=() if reason else compare_people(pairs, distance, kind),
        confusion=None if kind == TEXT or len(table.values) > MAX_CONFUSION_VALUES else count_confusion(answers, kind),
    )


def estimate_percent(pairs: Pairs) -> Estimate:
    return estimate_agreement(coefficients.compute_percent(pairs))


def estimate_alpha(pairs: Pairs, distance: Distance) -> Estimate:
    table = pairs.table
    return estimate_coefficient(table.item, table.value, lambda: coefficients.compute_alpha(pairs, distance))


def estimate_fleiss(pairs: Pairs, distance: Distance, kind: str) -> Estimate:
    table = pairs.table
    if kind not in SINGLE_KINDS:
        return Estimate(size=table.items, reason=Reason.NOT_NOMINAL)
    if np.ptp(table.answers_per_item):
        return Estimate(size=table.items, reason=Reason.UNEQUAL_ANSWERS)
    return estimate_coefficient(
        table.item, table.value, lambda: coefficients.compute_alpha(pairs, distance, corrected=False)
    )


def estimate_coefficient(item: IntArray, value: IntArray, compute: Callable[[], Ratio | None]) -> Estimate:
    """Of answers with these codes. Without an interval if hardly an item has another value than most."""
    items = int(item.max(initial=-1)) + 1
    if items < 2:
        return Estimate(size=items, reason=Reason.ONE_ITEM)
    if (ratio := compute()) is None:
        return Estimate(size=items, reason=Reason.ONE_VALUE)
    estimate = estimate_agreement(ratio)
    others = len(np.unique(item[value != np.bincount(value).argmax()]))
    if estimate.has_interval and others < MIN_OTHER_ITEMS:
        return Estimate(estimate.value, size=items, reason=Reason.RARE_VALUES)
    return estimate


def compare_people(pairs: Pairs, distance: Distance, kind: str) -> tuple[PeoplePair, ...]:
    """The pairs of people with the most common items, at most 300."""
    table = pairs.table
    numbers = np.array(table.values, np.float64) if kind in NUMBER_KINDS else None
    left, right = table.person[pairs.left], table.person[pairs.right]
    codes = left * len(table.people) + right
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    parts = sorted(zip(found.tolist(), np.split(order, starts[1:]), strict=True), key=lambda part: -len(part[1]))
    compared = []
    for code, rows in sorted(parts[:MAX_PEOPLE_PAIRS], key=lambda part: part[0]):
        first, second = pairs.first[rows], pairs.second[rows]
        if numbers is None:
            kappa = estimate_kappa(first, second, len(table.values), distance)
        else:
            kappa = estimate_number_kappa(first, second, numbers)
        compared.append(
            PeoplePair(
                first=table.people[code // len(table.people)],
                second=table.people[code % len(table.people)],
                items=len(rows),
                percent=estimate_agreement(coefficients.average_ratio((first != second).astype(np.float64))),
                kappa=kappa,
            )
        )
    return tuple(compared)


def estimate_number_kappa(first: IntArray, second: IntArray, numbers: FloatArray) -> Estimate:
    """On the scale of what these two people answered: next to an outlier of a third person, all that they say may look
    the same."""
    used, codes = np.unique(np.concatenate([first, second]), return_inverse=True)
    items = len(first)
    return estimate_kappa(codes[:items], codes[items:], len(used), NumberDistance(numbers[used]))


def estimate_kappa(first: IntArray, second: IntArray, values: int, distance: Distance) -> Estimate:
    item = np.tile(np.arange(len(first)), 2)
    return estimate_coefficient(
        item, np.concatenate([first, second]), lambda: coefficients.compute_kappa(first, second, values, distance)
    )


def count_confusion(answers: Iterable[ItemAnswer], kind: str) -> Confusion | None:
    """None without a pair, or for more than 60 different values."""
    table = build_table(answers, kind, with_cannot_judge=True)
    size = len(table.values)
    if not size:
        return None
    pairs = table.pairs
    counts = np.bincount(pairs.first * size + pairs.second, minlength=size**2).reshape(size, size)
    given = np.bincount(table.person * size + table.value, minlength=len(table.people) * size).reshape(-1, size)
    return Confusion(
        values=tuple(tuple(sorted(value)) if isinstance(value, frozenset) else value for value in table.values),
        counts=tuple(map(tuple, counts.tolist())),
        by_person={person: tuple(row) for person, row in zip(table.people, given.tolist(), strict=True)},
    )


def split_choices(answers: Iterable[ItemAnswer], options: Collection[str]) -> dict[str, list[ItemAnswer]]:
    """The answers to a question of multiple choice as one yes-no question for each option."""
    known = [
        (item, person, normalize_value(value, CHOICES)) for (item, person), value in select_latest(answers).items()
    ]
    return {
        option: [ItemAnswer(item, person, None if keys is None else option in keys) for item, person, keys in known]
        for option in options
    }
