"""Searches the samples of many runs, one run after the other, the newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from django.db.models import QuerySet

from rollouts.errors import InvalidInputError, QueryLimitError
from rollouts.models import NOT_BLIND, Queue, Run, Sample
from rollouts.query import TimeBudget, find_samples, parse_query

MAX_RUN_SECONDS: Final = 2.0  # of one run; of a larger one, the newest steps are searched
MAX_SHOWN_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class RunMatches:
    """`samples` are the first of `total` matches, the newest first. `eval_total` of all matches are in eval steps. If
    `is_partial`, older steps were not searched. `problem` says what the query asks for that the run does not have, such
    as a key that no sample has."""

    run: Run
    total: int = 0
    eval_total: int = 0
    samples: list[Sample] = field(default_factory=list)
    is_partial: bool = False
    problem: str = ""


def search_runs(
    runs: QuerySet[Run], q: str, *, reader: int, shown: int = 3, seconds: float | None = None
) -> Iterator[RunMatches]:
    """Yields the matches of each run. With `seconds`, it ends after that time, but not before the first run.

    Raises InvalidQueryError before the first run if the query cannot be parsed.
    """
    query = parse_query(q)
    may_matter = query.asks_labels or query.may_ask_rescores
    blind = Queue.objects.blind_for(reader) if may_matter else NOT_BLIND
    started = monotonic()
    for run in runs.select_related("project").order_by("-pk").iterator(chunk_size=50):
        budget = TimeBudget(MAX_RUN_SECONDS)
        try:
            result = find_samples(run, q=query, ordering="-step", reader=reader, blind=blind, time_budget=budget)
            total = result.total
            samples = list(result.samples[: min(shown, MAX_SHOWN_SAMPLES)]) if total else []
            eval_steps = result.scope.steps.filter(split="eval")
            has_eval = total and eval_steps.exists()
            eval_total = result.samples.order_by().in_steps(eval_steps).count() if has_eval else 0
            # Samples that arrive between the counts are not in the total.
            yield RunMatches(run, total, min(eval_total, total), samples, is_partial=result.cursor is not None)
        except QueryLimitError:  # the other runs would take as long
            raise
        except InvalidInputError as error:  # another run may have logged the key
            yield RunMatches(run, problem=str(error))
        if seconds is not None and monotonic() - started > seconds:
            return
