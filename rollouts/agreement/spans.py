"""Agreement on marked ranges of text: overlap F1, characters that both marked over the mean of what each marked.

F1 needs no count of what nobody marked, see Hripcsak and Rothschild (2005), "Agreement, the F-Measure, and Reliability
in Information Retrieval". Each item has the same weight; an item where nobody marked anything is left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from rollouts.agreement.coefficients import average_ratio
from rollouts.agreement.estimates import Estimate, Reason
from rollouts.agreement.intervals import estimate_agreement

MAX_DIFFERENT_OVERLAP = 0.5  # people differ if less than half of what they marked is the same


class Marks(NamedTuple):
    """The ranges, as first character and character after the last, that one person marked in an item; empty if the
    person looked at it and marked nothing."""

    item: Hashable
    person: str
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SpanPair:
    first: str
    second: str
    items: int
    overlap: Estimate


@dataclass(frozen=True, slots=True)
class SpanAgreement:
    """`items` have marks of two people, at least one of them not empty. `different` are the items in which people's
    marks overlap by less than half."""

    items: int
    overlap: Estimate
    pairs: tuple[SpanPair, ...]
    different: tuple[Hashable, ...]


def measure_span_agreement(marks: Iterable[Marks]) -> SpanAgreement:
    by_item: dict[Hashable, dict[str, tuple[tuple[int, int], ...]]] = {}
    for item, person, ranges in marks:
        by_item.setdefault(item, {})[person] = merge_ranges(ranges)
    overlaps: dict[Hashable, float] = {}
    by_pair: dict[tuple[str, str], list[float]] = {}
    for item, by_person in by_item.items():
        found = []
        for (first, ranges), (second, others) in combinations(sorted(by_person.items()), 2):
            if ranges or others:
                found.append(compute_overlap(ranges, others))
                by_pair.setdefault((first, second), []).append(found[-1])
        if found:
            overlaps[item] = sum(found) / len(found)
    return SpanAgreement(
        items=len(overlaps),
        overlap=estimate_overlap(list(overlaps.values())),
        pairs=tuple(
            SpanPair(first, second, len(found), estimate_overlap(found))
            for (first, second), found in sorted(by_pair.items())
        ),
        different=tuple(item for item, overlap in overlaps.items() if overlap < MAX_DIFFERENT_OVERLAP),
    )


def estimate_overlap(overlaps: list[float]) -> Estimate:
    if not overlaps:
        return Estimate(reason=Reason.NO_MARKS)
    return estimate_agreement(average_ratio(1 - np.array(overlaps)))


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sorted, without overlaps and empty ranges."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def compute_overlap(first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...]) -> float:
    """Of merged ranges, at least one of them not empty."""
    common, left, right = 0, 0, 0
    while left < len(first) and right < len(second):
        common += max(0, min(first[left][1], second[right][1]) - max(first[left][0], second[right][0]))
        if first[left][1] < second[right][1]:
            left += 1
        else:
            right += 1
    marked = sum(end - start for start, end in first) + sum(end - start for start, end in second)
    return 2 * common / marked
