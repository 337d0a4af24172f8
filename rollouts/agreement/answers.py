"""Answers of people, and the pairs of answers of two people to the same item."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

CHOICE, CHOICES, RATING, NUMBER, YES_NO, TEXT = "choice", "choices", "rating", "number", "yes-no", "text"
KINDS = (CHOICE, CHOICES, RATING, NUMBER, YES_NO, TEXT)
SINGLE_KINDS = (CHOICE, YES_NO)
NUMBER_KINDS = (RATING, NUMBER)
# An answer that counts as a difference in the list of disagreements, but as missing in every coefficient.
CANNOT_JUDGE = "cannot-judge"


class ItemAnswer(NamedTuple):
    """What one person answered to one question about one item. None is an item without an answer; multiple choice has
    a collection of keys."""

    item: Hashable
    person: str
    value: Any


def select_latest(answers: Iterable[ItemAnswer]) -> dict[tuple[Hashable, str], Any]:
    """The last answer of each person to each item."""
    return {(item, person): value for item, person, value in answers}


def normalize_value(value: Any, kind: str) -> Any:
    """A value that can be compared and sorted, or None if it is missing or does not fit the kind, as after a change of
    the rubric."""
    if kind == CHOICES and not isinstance(value, str) and isinstance(value, Iterable):
        keys = frozenset(map(str, value))
        return None if keys == {CANNOT_JUDGE} else keys
    if isinstance(value, int | float):
        number = float(value)
        fits = isfinite(number) and (kind in SINGLE_KINDS or kind in NUMBER_KINDS)
        return (number if kind in NUMBER_KINDS else value) if fits else None
    if not isinstance(value, str) or value == CANNOT_JUDGE or kind in NUMBER_KINDS:
        return None
    return frozenset([value]) if kind == CHOICES else value


def sort_values(values: set[Any], kind: str) -> list[Any]:
    """ "Cannot judge" comes last."""
    last = [CANNOT_JUDGE] if CANNOT_JUDGE in values else []
    values = values - {CANNOT_JUDGE}
    if kind == CHOICES:
        return sorted(values, key=lambda keys: (len(keys), sorted(keys))) + last
    return (sorted(values) if kind in NUMBER_KINDS else sorted(values, key=str)) + last


@dataclass(frozen=True)
class AnswerTable:
    """Known answers to items that two or more people answered, as codes, sorted by item. `values` are sorted, so that
    codes of numbers have the order of the numbers."""

    people: list[str]
    values: list[Any]
    item: IntArray
    person: IntArray
    value: IntArray
    items: int

    @cached_property
    def answers_per_item(self) -> IntArray:
        return np.bincount(self.item, minlength=self.items)

    @cached_property
    def pairs(self) -> Pairs:
        """Each pair of answers to the same item once. The person of the left answer comes first by name."""
        left: list[IntArray] = [np.zeros(0, np.int64)]
        right: list[IntArray] = [np.zeros(0, np.int64)]
        most = int(self.answers_per_item.max(initial=0))
        for distance in range(1, most):
            found = np.flatnonzero(self.item[distance:] == self.item[:-distance])
            left.append(found)
            right.append(found + distance)
        return Pairs(self, np.concatenate(left), np.concatenate(right))


@dataclass(frozen=True)
class Pairs:
    """Positions in the table."""

    table: AnswerTable
    left: IntArray
    right: IntArray

    @property
    def item(self) -> IntArray:
        return self.table.item[self.left]

    @property
    def first(self) -> IntArray:
        return self.table.value[self.left]

    @property
    def second(self) -> IntArray:
        return self.table.value[self.right]


def build_table(answers: Iterable[ItemAnswer], kind: str, with_cannot_judge: bool = False) -> AnswerTable:
    """Raises ValueError if the kind of question is unknown."""
    if kind not in KINDS:
        raise ValueError(f"Unknown kind of question {kind!r}. Known kinds: {', '.join(KINDS)}.")
    known: list[tuple[Hashable, str, Any]] = []
    counts: dict[Hashable, int] = {}
    for (item, person), value in select_latest(answers).items():
        normalized = normalize_value(value, kind)
        if normalized is None and value is not None and with_cannot_judge:
            normalized = CANNOT_JUDGE
        if normalized is not None:
            known.append((item, person, normalized))
            counts[item] = counts.get(item, 0) + 1
    known = [answer for answer in known if counts[answer[0]] > 1]
    items = encode([item for item, _, _ in known], list(dict.fromkeys(item for item, _, _ in known)))
    people = sorted({person for _, person, _ in known})
    values = sort_values({value for _, _, value in known}, kind)
    person_codes = encode([person for _, person, _ in known], people)
    value_codes = encode([value for _, _, value in known], values)
    order = np.lexsort((person_codes, items))
    size = int(items.max(initial=-1)) + 1
    return AnswerTable(people, values, items[order], person_codes[order], value_codes[order], size)


def encode(values: Sequence[Any], categories: Sequence[Any]) -> IntArray:
    codes = {category: code for code, category in enumerate(categories)}
    return np.fromiter((codes[value] for value in values), np.int64, len(values))
