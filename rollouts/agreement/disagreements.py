"""Which items people answered differently, and what counts if they do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollouts.agreement.answers import NUMBER_KINDS, ItemAnswer, normalize_value, select_latest


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An item and everything that people answered, by name."""

    item: Hashable
    answers: tuple[ItemAnswer, ...]


def group_by_item(answers: Iterable[ItemAnswer]) -> dict[Hashable, list[ItemAnswer]]:
    """The last answer of each person; None is no answer. "Cannot judge" is one."""
    by_item: dict[Hashable, list[ItemAnswer]] = {}
    for (item, person), value in select_latest(answers).items():
        if value is not None:
            by_item.setdefault(item, []).append(ItemAnswer(item, person, value))
    return by_item


def find_disagreements(answers: Iterable[ItemAnswer], kind: str, tolerance: float = 0) -> tuple[Disagreement, ...]:
    """Items with different answers, in the order of the answers. "Cannot judge" differs from every other answer.
    Numbers and ratings differ if they are more than `tolerance` apart."""
    return tuple(
        Disagreement(item, tuple(sorted(given, key=lambda answer: answer.person)))
        for item, given in group_by_item(answers).items()
        if differ([normalize_value(answer.value, kind) for answer in given], kind, tolerance)
    )


def differ(values: list[Any], kind: str, tolerance: float) -> bool:
    known = [value for value in values if value is not None]
    if known and len(known) < len(values):
        return True
    if kind in NUMBER_KINDS:
        return bool(known) and max(known) - min(known) > tolerance
    return len(set(known)) > 1


def decide_values(
    answers: Iterable[ItemAnswer], kind: str, decisions: Mapping[Hashable, Any] | None = None
) -> dict[Hashable, Any]:
    """What counts for each item: the lead's decision, else the answer of most people. Without a majority the item is
    left out."""
    decisions = decisions or {}
    result: dict[Hashable, Any] = {}
    for item, given in group_by_item(answers).items():
        votes: dict[Any, int] = {}
        for answer in given:
            if (value := normalize_value(answer.value, kind)) is not None:
                votes[value] = votes.get(value, 0) + 1
        ranked = sorted(votes.items(), key=lambda vote: -vote[1])
        if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]):
            result[item] = ranked[0][0]
    decided = {item: normalize_value(value, kind) for item, value in decisions.items()}
    result |= decided
    return {item: value for item, value in result.items() if value is not None}
