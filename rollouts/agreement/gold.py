"""Accuracy of people on hidden gold items."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollouts.agreement.answers import ItemAnswer, normalize_value, select_latest
from rollouts.agreement.disagreements import differ
from rollouts.agreement.estimates import Estimate, Reason
from rollouts.agreement.intervals import compute_wilson


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`share` of the `judged` gold items is correct, with Wilson's interval. `cannot_judge` were answered without a
    value and count neither way. `wrong` are the items answered wrongly."""

    person: str
    judged: int
    correct: int
    cannot_judge: int
    share: Estimate
    wrong: tuple[Hashable, ...]


def measure_accuracy(
    answers: Iterable[ItemAnswer], gold: Mapping[Hashable, Any], kind: str, tolerance: float = 0
) -> tuple[Accuracy, ...]:
    """Of each person who answered something, by name. A number is correct if it is at most `tolerance` off."""
    expected = {item: normalize_value(value, kind) for item, value in gold.items()}
    by_person: dict[str, list[tuple[Hashable, Any]]] = {}
    for (item, person), value in select_latest(answers).items():
        given = by_person.setdefault(person, [])
        if value is not None and expected.get(item) is not None:
            given.append((item, normalize_value(value, kind)))
    return tuple(
        build_accuracy(person, given, expected, kind, tolerance) for person, given in sorted(by_person.items())
    )


def build_accuracy(
    person: str, given: list[tuple[Hashable, Any]], expected: Mapping[Hashable, Any], kind: str, tolerance: float
) -> Accuracy:
    judged = [(item, value) for item, value in given if value is not None]
    wrong = tuple(item for item, value in judged if differ([value, expected[item]], kind, tolerance))
    correct = len(judged) - len(wrong)
    share = Estimate(reason=Reason.NO_ANSWERS)
    if judged:
        low, high = compute_wilson(correct / len(judged), len(judged))
        share = Estimate(correct / len(judged), low, high, len(judged))
    return Accuracy(person, len(judged), correct, len(given) - len(judged), share, wrong)
