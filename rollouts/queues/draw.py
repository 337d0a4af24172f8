"""Draws the items of a queue from the samples that match its query.

The samples are divided into strata: one for the whole queue, one per step, or one per data source. From each, `count`
are drawn at random with a seed, or those with the worst scores, or those in which the rank of the score and the rank of
the length differ most. A random draw takes the samples whose hashes with the seed are smallest, so it is the same each
time. Its probability is stored, so that rates of labels can be weighted.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rollouts.errors import InvalidInputError
from rollouts.models import Queue, Run
from rollouts.query import find_samples

MIN_GROUP_SIZE: Final = 2  # of a group that is an item: one response has no order
COLUMNS: Final = ("pk", "step", "step__step", "data_source", "group", "score", "chars", "final")


class Candidate(NamedTuple):
    """A sample, or a group with its first sample, its mean score and its mean length in characters."""

    sample: str
    step_id: int
    stratum: str
    group: str
    score: float | None
    chars: float


class DrawnItem(NamedTuple):
    """`probability` is None if the item was not drawn at random."""

    sample: str
    step_id: int
    stratum: str
    group: str
    probability: float | None


@dataclass(slots=True)
class Draw:
    """The drawn items in the order in which they are shown. `matched`: {stratum: candidates}, `by_step`: {step id:
    candidates}."""

    items: list[DrawnItem] = field(default_factory=list)
    matched: Counter[str] = field(default_factory=Counter)
    by_step: Counter[int] = field(default_factory=Counter)

    @property
    def drawn(self) -> Counter[str]:
        return Counter(item.stratum for item in self.items)


def draw_items(queue: Queue, run: Run, *, reader: int, step_ids: Iterable[int] | None = None, limit: int) -> Draw:
    """Draws from one run, or from these steps of it. Raises InvalidInputError if the query is not valid or more than
    `limit` items would be drawn."""
    candidates = find_candidates(queue, run, reader, None if step_ids is None else frozenset(step_ids))
    draw = Draw()
    strata: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        draw.matched[candidate.stratum] += 1
        draw.by_step[candidate.step_id] += 1
        strata[candidate.stratum].append(candidate)
    for stratum in strata.values():
        draw.items += draw_stratum(queue, stratum)
        if len(draw.items) > limit:
            message = f"The query matches more than {limit:,} items. Narrow it, or draw a number of them."
            raise InvalidInputError(message, "count")
    return draw


def find_candidates(queue: Queue, run: Run, reader: int, step_ids: frozenset[int] | None) -> Iterator[Candidate]:
    result = find_samples(run, q=queue.q, ordering="order", reader=reader)
    rows = result.samples
    if step_ids is not None:
        rows = rows.filter(step__in=step_ids)
    values = rows.values_list(*COLUMNS).iterator(chunk_size=5000)
    if queue.unit == Queue.Unit.GROUP:
        yield from merge_groups(queue, run, values)
        return
    for pk, step_id, step, source, group, score, chars, _final in values:
        yield Candidate(pk, step_id, get_stratum(queue, run, step, source), group, score, chars)


def merge_groups(queue: Queue, run: Run, rows: Iterable[tuple[Any, ...]]) -> Iterator[Candidate]:
    """Yields the groups of several final samples, in the order of their first samples."""
    groups: dict[tuple[int, str], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        if row[7] and row[4]:
            groups[row[1], row[4]].append(row)
    for (step_id, group), members in groups.items():
        if len(members) < MIN_GROUP_SIZE:
            continue
        scores = [row[5] for row in members if row[5] is not None]
        first = members[0]
        mean = sum(scores) / len(scores) if scores else None
        chars = sum(row[6] for row in members) / len(members)
        yield Candidate(first[0], step_id, get_stratum(queue, run, first[2], first[3]), group, mean, chars)


def get_stratum(queue: Queue, run: Run, step: int, source: str) -> str:
    """Returns the key of the stratum. A step belongs to its run."""
    match queue.per:
        case Queue.Stratum.STEP:
            return f"{run.uid}/{step}"
        case Queue.Stratum.SOURCE:
            return source
        case _:
            return ""


def draw_stratum(queue: Queue, candidates: list[Candidate]) -> list[DrawnItem]:
    """Returns the items of one stratum: chosen ones in the order of the choice, all in the order of the run, and random
    ones in random order."""
    count = len(candidates) if queue.count is None else queue.count
    probability: float | None = None
    match queue.selection:
        case Queue.Selection.RANDOM:
            chosen = heapq.nsmallest(count, candidates, key=lambda row: hash_sample(queue.seed, row.sample))
            probability = min(1.0, count / len(candidates))
        case Queue.Selection.WORST:
            scored = [row for row in candidates if row.score is not None]
            chosen = heapq.nsmallest(count, scored, key=lambda row: (row.score, row.sample))
        case Queue.Selection.DISAGREEING:
            chosen = find_disagreeing(candidates, count)
        case _:
            chosen = candidates[:count]
            probability = 1.0 if len(chosen) == len(candidates) else None
    return [DrawnItem(row.sample, row.step_id, row.stratum, row.group, probability) for row in chosen]


def hash_sample(seed: int, sample: str) -> bytes:
    return blake2b(sample.encode(), digest_size=8, key=str(seed).encode()).digest()


def find_disagreeing(candidates: list[Candidate], count: int) -> list[Candidate]:
    """Returns the candidates whose score and length have the most different ranks: short texts with a high score, and
    long ones with a low score."""
    scored = [row for row in candidates if row.score is not None]
    if not scored:
        return []
    scores = compute_ranks(np.array([row.score for row in scored], np.float64))
    lengths = compute_ranks(np.array([row.chars for row in scored], np.float64))
    difference = np.abs(scores - lengths)
    return [scored[row] for row in np.argsort(-difference, kind="stable")[:count]]


def compute_ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the rank of each value between 0 and 1. Equal values have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = ((ends - counts + ends - 1) / 2)[inverse] / max(1, len(values) - 1)
    return ranks
