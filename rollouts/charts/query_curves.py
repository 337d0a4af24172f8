"""The curve of a query over the steps of a run: the share of `is:truncated source:zh`, or the mean score of a query.

What a query finds in a step is stored with the version of the step, so only new and changed steps are searched again.
A call takes a bounded time and returns what is known so far; the caller repeats it until the curve is complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import numpy as np
from django.utils.translation import gettext as _

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.charts.step_counts import StepCounts, StoredCounts
from rollouts.errors import InvalidInputError
from rollouts.ingest import find_copied_steps
from rollouts.metrics import downsample_points
from rollouts.models import NOT_BLIND, Queue, Run, Step
from rollouts.query import And, Query, parse_query, resolve_rescores

MEASURES: Final = ("share", "count", "score", "length")
MAX_QUERY_CHARS: Final = 500
SEPARATOR: Final = "|"
ESCAPED_SEPARATOR: Final = "%7C"  # in `among`; the query is the last part, so it needs none


@dataclass(frozen=True, slots=True)
class ChartQuery:
    """What a chart of a query shows: the `measure` of the samples that match `q`, in the steps of `split`. A share is
    that of the samples that match `among`, by default of all."""

    q: str
    measure: str = "share"
    split: str = "train"
    among: str = ""

    @classmethod
    def parse(cls, text: str) -> ChartQuery:
        """From `measure|split|among|query`, where a `|` of `among` is written as `%7C`. Raises InvalidInputError, and
        InvalidQueryError for the queries."""
        measure, split, among, q = (*text.split(SEPARATOR, 3), "", "", "")[:4]
        if measure not in MEASURES or split not in SPLITS:
            message = _("A chart of a query is `measure|split|among|query`, with a measure of {measures}.")
            raise InvalidInputError(message.format(measures=", ".join(MEASURES)), "queries")
        among = among.replace(ESCAPED_SEPARATOR, SEPARATOR).strip() if measure == "share" else ""
        query = cls(q.strip(), measure, split, among)
        query.parse_queries()
        return query

    @property
    def text(self) -> str:
        among = self.among.replace(SEPARATOR, ESCAPED_SEPARATOR)
        return SEPARATOR.join((self.measure, self.split, among, self.q))

    def check_reader(self, reader: int, run: Run) -> None:
        """Raises InvalidInputError for a chart of labels or re-scores if the user reviews a blind queue: the points are
        the same for everybody."""
        queries = [query for query in self.parse_queries() if query and (query.asks_labels or query.may_ask_rescores)]
        blind = Queue.objects.blind_for(reader) if queries else NOT_BLIND
        if not blind.queues:
            return
        if any(query.asks_labels for query in queries):
            raise InvalidInputError(
                _("You review a blind queue. Until it is closed, charts of labels are hidden."), "q"
            )
        for query in queries:
            if query.root:
                resolve_rescores(query.root, run, blind)

    def parse_queries(self) -> tuple[Query, Query | None]:
        """The query to count, and the one that a share refers to; None for all samples."""
        query, among = parse_shared_query(self.q, "q"), None
        if self.measure == "share" and self.among:
            among = parse_shared_query(self.among, "among")
            if query.root and among.root:
                query = Query(root=And((among.root, query.root)), leaves=(*among.leaves, *query.leaves))
        if query.root is None and self.measure in ("share", "count"):
            raise InvalidInputError(
                _("Write a query, such as is:truncated. Without one, this counts all samples."), "q"
            )
        return query, among


def parse_shared_query(text: str, field: str) -> Query:
    """Raises InvalidInputError for a query whose result depends on who asks: a chart is the same for everybody."""
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidInputError(
            _("A query of a chart has at most {count} characters.").format(count=MAX_QUERY_CHARS), field
        )
    query = parse_query(text)
    if query.personal:
        message = _("A chart is the same for everybody, so it cannot contain `is:unseen`, `is:fine` or the like.")
        raise InvalidInputError(message, field)
    return query


@dataclass(frozen=True, slots=True)
class QueryCurveResult:
    """The points of the `done` of `total` steps, with the number of matching samples in `counts`."""

    step_kind: str
    steps: list[int]
    values: list[float | None]
    counts: list[int]
    done: int
    total: int

    @property
    def complete(self) -> bool:
        return self.done == self.total


def load_query_curve(run: Run, query: ChartQuery, *, seconds: float, max_points: int = 0) -> QueryCurveResult:
    """Searches new and changed steps for at most about `seconds`, the newest first.

    Raises InvalidQueryError for a logged key that no sample has, and StorageUnavailableError.
    """
    counted, among = query.parse_queries()
    steps = list_steps(run, query.split)
    deadline = monotonic() + seconds
    found = StoredCounts.load(run, counted, query.split, steps)
    found.update(deadline)
    of = StoredCounts.load(run, among, query.split, steps) if among else None
    if of:
        of.update(deadline)
    known = {step.pk for step in steps if step.pk in found.counts and (of is None or step.pk in of.counts)}
    points = []
    for number, rows in group_by_number(reversed(steps)).items():
        parts = [found.counts[row.pk] for row in rows if row.pk in known]
        if len(parts) == len(rows) and any(part.matched >= 0 for part in parts):
            counts = add_counts(parts)
            points.append((number, counts.matched, measure(query, rows, counts, of)))
    kind = steps[0].step_kind if steps else STEP_KINDS[0]
    return build_result(kind, points, len(known), len(steps), max_points)


def group_by_number(steps: Iterable[Step]) -> dict[int, list[Step]]:
    """The rows of each step: of attempts that run at the same time there are several, which pages show as one."""
    grouped: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        grouped[step.step].append(step)
    return grouped


def add_counts(parts: Sequence[StepCounts]) -> StepCounts:
    """An attempt without a logged key of the query has no matches, if another one of the step has the key."""
    return StepCounts(
        matched=sum(max(part.matched, 0) for part in parts),
        scored=sum(part.scored for part in parts),
        score_sum=sum(part.score_sum for part in parts),
        with_text=sum(part.with_text for part in parts),
        chars_sum=sum(part.chars_sum for part in parts),
    )


def list_steps(run: Run, split: str) -> list[Step]:
    """The current steps of the split with samples, newest first, of the kind that pages show. Without steps of which
    samples were dropped: the share among the others would be that of a selection."""
    rows = run.steps.current().filter(split=split, samples__gt=0, dropped=0).exclude(pk__in=find_copied_steps(run))
    steps = list(rows.only("pk", "step", "step_kind", "version", "rule", "samples").order_by("-step"))
    kind = next((kind for kind in STEP_KINDS if any(step.step_kind == kind for step in steps)), "")
    return [step for step in steps if step.step_kind == kind]


def measure(query: ChartQuery, steps: Sequence[Step], counts: StepCounts, among: StoredCounts | None) -> float | None:
    match query.measure:
        case "share":
            total = sum(max(among.counts[step.pk].matched, 0) if among else step.samples for step in steps)
            return counts.matched / total if total else None
        case "count":
            return float(counts.matched)
        case "score":
            return counts.score_sum / counts.scored if counts.scored else None
        case _:
            return counts.chars_sum / counts.with_text if counts.with_text else None


def build_result(
    kind: str, points: Sequence[tuple[int, int, float | None]], done: int, total: int, max_points: int
) -> QueryCurveResult:
    steps = np.array([point[0] for point in points], "<i8")
    values = np.array([np.nan if point[2] is None else point[2] for point in points], "<f8")
    selected = downsample_points((steps, values), max_points)
    numbers = {point[0]: point for point in points}
    shown = [numbers[int(step)] for step in selected[0]]
    return QueryCurveResult(
        step_kind=kind,
        steps=[point[0] for point in shown],
        values=[point[2] for point in shown],
        counts=[point[1] for point in shown],
        done=done,
        total=total,
    )
