"""Draws the items of a queue from the samples that match its query.

The samples are divided into strata: one for the whole queue, one per step, or one per data source. From each, `count`
are drawn at random with a seed, or those with the worst scores, or those in which the rank of the score and the rank of
the length differ most. A random draw takes the samples whose hashes with the seed are smallest, so it is the same each
time. Its probability is stored, so that rates of labels can be weighted.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from django.db.models import Max, Min

from rollouts.errors import InvalidInputError
from rollouts.models import Queue, Run, Step
from rollouts.query import find_samples, parse_query

MIN_GROUP_SIZE: Final = 2  # of a group that is an item: one response has no order
BATCH_SAMPLES: Final = 20_000
NAMED_STEPS: Final = ("eval", "feed_index")  # splits and kinds that a run has next to its training steps
COLUMNS: Final = ("pk", "step", "data_source", "group", "score", "chars", "final", "dump", "ordinal")


class TooManyItemsError(InvalidInputError):
    """More items would be drawn than the queue may have."""


class Candidate(NamedTuple):
    """A sample, or a group with its first sample, its mean score and its mean length in characters."""

    sample: str
    step_id: int
    stratum: str
    group: str
    score: float | None
    chars: float


class StepKey(NamedTuple):
    """What the number of a step counts, and the number."""

    split: str
    step_kind: str
    step: int


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


def draw_items(
    queue: Queue,
    runs: Mapping[Run, Collection[int] | None],
    *,
    reader: int,
    limit: int,
    is_growth: bool = False,
) -> dict[Run, Draw]:
    """Draws from all samples of the runs together, or from the given steps of each. Raises InvalidInputError if the
    query is not valid or more than `limit` items would be drawn. `is_growth`: see `find_candidates`."""
    draws = {run: Draw() for run in runs}
    strata: dict[str, StratumDraw] = {}
    run_by_step: dict[int, Run] = {}
    selected = 0
    for run, step_ids in runs.items():
        chosen = None if step_ids is None else frozenset(step_ids)
        for candidate in find_candidates(queue, run, reader, chosen, is_growth=is_growth):
            draws[run].matched[candidate.stratum] += 1
            draws[run].by_step[candidate.step_id] += 1
            run_by_step[candidate.step_id] = run
            stratum = strata.get(candidate.stratum) or strata.setdefault(candidate.stratum, StratumDraw(queue))
            selected += stratum.add(candidate)
            if selected > limit and queue.selection != Queue.Selection.DISAGREEING:
                raise build_limit_error(limit)
    items = [item for stratum in strata.values() for item in stratum.finish()]
    if len(items) > limit:
        raise build_limit_error(limit)
    for item in items:
        draws[run_by_step[item.step_id]].items.append(item)
    return draws


def build_limit_error(limit: int) -> TooManyItemsError:
    message = f"The query matches more than {limit:,} items. Narrow it, or draw a number of them."
    return TooManyItemsError(message, "count")


def find_candidates(
    queue: Queue, run: Run, reader: int, step_ids: frozenset[int] | None, *, is_growth: bool = False
) -> Iterator[Candidate]:
    """Yields what matches, in the order of the run. Reads some steps at a time: the database sorts nothing, and a run
    of a million samples needs little memory.

    `is_growth`: the queue grows by these steps. Texts and logged keys of other steps are not searched, and a key that
    these steps lack is no error, since it was checked when the queue was made.
    """
    q = narrow_query(queue.q, step_ids) if is_growth and step_ids is not None else queue.q
    result = find_samples(run, q=q, ordering="order", reader=reader, may_lack_keys=q != queue.q)
    steps = result.scope.steps.order_by("step", "pk")
    if step_ids is not None:
        steps = steps.filter(pk__in=step_ids)
    merge = merge_groups if queue.unit == Queue.Unit.GROUP else build_candidates
    for batch in split_steps(steps.values_list("pk", "split", "step_kind", "step", "samples")):
        rows = result.samples.order_by().select_related(None).filter(step__in=list(batch)).values_list(*COLUMNS)
        ordered = sorted(rows, key=lambda row: (batch[row[1]].step, row[7], row[8]))
        yield from merge(queue, run, batch, ordered)


def narrow_query(q: str, step_ids: frozenset[int]) -> str:
    """Returns the query for the numbers of these steps; the same one if it would be too long."""
    numbers = Step.objects.filter(pk__in=step_ids).aggregate(first=Min("step"), last=Max("step"))
    narrowed = f"({q}) step:{numbers['first']}..{numbers['last']}"
    if not q or numbers["first"] is None or numbers["first"] < 0:
        return q
    try:
        parse_query(narrowed)
    except InvalidInputError:
        return q
    return narrowed


def split_steps(steps: Iterable[tuple[int, str, str, int, int]]) -> Iterator[dict[int, StepKey]]:
    """Yields {step id: key} of steps with about `BATCH_SAMPLES` samples. A number is not split: attempts that run at
    the same time have a row each."""
    batch: dict[int, StepKey] = {}
    total, last = 0, None
    for pk, split, step_kind, number, samples in steps:
        if total + samples > BATCH_SAMPLES and batch and number != last:
            yield batch
            batch, total = {}, 0
        batch[pk] = StepKey(split, step_kind, number)
        total, last = total + samples, number
    if batch:
        yield batch


def build_candidates(
    queue: Queue, run: Run, steps: Mapping[int, StepKey], rows: Iterable[tuple[Any, ...]]
) -> Iterator[Candidate]:
    for pk, step_id, source, group, score, chars, *_rest in rows:
        yield Candidate(pk, step_id, get_stratum(queue, run, steps[step_id], source), group, score, chars)


def merge_groups(
    queue: Queue, run: Run, steps: Mapping[int, StepKey], rows: Iterable[tuple[Any, ...]]
) -> Iterator[Candidate]:
    """Yields the groups of several final samples, in the order of their first samples."""
    groups: dict[tuple[int, str], list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        if row[6] and row[3]:
            groups[row[1], row[3]].append(row)
    for (step_id, group), members in groups.items():
        if len(members) < MIN_GROUP_SIZE:
            continue
        scores = [row[4] for row in members if row[4] is not None]
        first = members[0]
        mean = sum(scores) / len(scores) if scores else None
        chars = sum(row[5] for row in members) / len(members)
        yield Candidate(first[0], step_id, get_stratum(queue, run, steps[step_id], first[2]), group, mean, chars)


def get_stratum(queue: Queue, run: Run, step: StepKey, source: str) -> str:
    """Returns the key of the stratum. A step belongs to its run, its split and what its number counts; the key of a
    training step has only the run and the number."""
    match queue.per:
        case Queue.Stratum.STEP:
            return "/".join([run.uid, *(name for name in step[:2] if name in NAMED_STEPS), str(step.step)])
        case Queue.Stratum.SOURCE:
            return source
        case _:
            return ""


class StratumDraw:
    """Draws from one stratum while its candidates arrive. Remembers only those that are drawn so far, except where the
    ranks of all decide."""

    def __init__(self, queue: Queue) -> None:
        self.selection, self.seed, self.count = queue.selection, queue.seed, queue.count
        self.matched = 0
        self.kept: list[Candidate] = []
        self.heap: list[tuple[Any, int, Candidate]] = []  # the one that is dropped next is first

    def add(self, candidate: Candidate) -> int:
        """Returns by how many the drawn candidates increase."""
        self.matched += 1
        if self.selection in (Queue.Selection.ALL, Queue.Selection.DISAGREEING):
            is_kept = self.selection != Queue.Selection.ALL or self.count is None or len(self.kept) < self.count
            if is_kept:
                self.kept.append(candidate)
            return int(is_kept)
        if self.selection == Queue.Selection.WORST and candidate.score is None:
            return 0
        entry = (Reversed(self.rank(candidate)), self.matched, candidate)
        if self.count is not None and len(self.heap) >= self.count:
            heapq.heappushpop(self.heap, entry)
            return 0
        heapq.heappush(self.heap, entry)
        return 1

    def rank(self, candidate: Candidate) -> Any:
        """The smallest ones are drawn."""
        if self.selection == Queue.Selection.RANDOM:
            return hash_sample(self.seed, candidate.sample)
        return candidate.score, candidate.sample

    def finish(self) -> list[DrawnItem]:
        """Returns the items: chosen ones in the order of the choice, all in the order of the run, and random ones in
        random order."""
        probability: float | None = None
        match self.selection:
            case Queue.Selection.ALL:
                chosen = self.kept
                probability = 1.0 if len(chosen) == self.matched else None
            case Queue.Selection.DISAGREEING:
                chosen = find_disagreeing(self.kept, len(self.kept) if self.count is None else self.count)
            case _:
                chosen = sorted((entry[2] for entry in self.heap), key=self.rank)
                if self.selection == Queue.Selection.RANDOM:
                    probability = min(1.0, len(chosen) / self.matched)
        return [DrawnItem(row.sample, row.step_id, row.stratum, row.group, probability) for row in chosen]


class Reversed(NamedTuple):
    """A rank that is smaller if its value is larger: `heapq` keeps the smallest value first."""

    value: Any

    def __lt__(self, other: Any) -> bool:
        return bool(other.value < self.value)


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
