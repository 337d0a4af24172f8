"""Finds names by some of their letters in order: `qwgr` finds `qwen_grpo`. The palette's script ranks the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Row = TypeVar("Row")

APART = frozenset(" -_./:@")


def rank(asked: str, name: str) -> int | None:
    """How well `name` matches, the more the better; None where it does not. Every word must be found: as it stands,
    best at the beginning of a part of the name, else letter by letter."""
    name = name.lower()
    total = 0
    for word in asked.lower().split():
        place = name.find(word)
        found = whole(name, place, word) if place >= 0 else scattered(name, word)
        if found is None:
            return None
        total += found
    return total


def whole(name: str, place: int, word: str) -> int:
    return 100 + len(word) + (50 if begins(name, place) else 0)


def begins(name: str, place: int) -> bool:
    return place == 0 or name[place - 1] in APART


def scattered(name: str, word: str) -> int | None:
    """Letters in order; those that begin a part count, gaps cost."""
    total, last = 0, -1
    for letter in word:
        place = name.find(letter, last + 1)
        if place < 0:
            return None
        total += (5 if begins(name, place) else 0) - min(place - last - 1, 5)
        last = place
    return total


def best(asked: str, rows: Sequence[Row], named: Callable[[Row], str], count: int) -> list[Row]:
    """The `count` best, those that match alike in the order in which they came."""
    ranked = [(score, row) for row in rows if (score := rank(asked, named(row))) is not None]
    ranked.sort(key=lambda pair: -pair[0])
    return [row for _, row in ranked[:count]]
