"""Asks the query language for the table of a step; a query that cannot be read becomes a sentence, not a failure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from django.utils.safestring import SafeString

from dashboard.pages.common import SampleRow, StepUrlState, build_sample_rows, find_step_kind, render_query_error
from dashboard.pages.step import histograms as figures
from dashboard.pages.step import scatter
from dashboard.pages.step.histograms import ChartAxes, ResultStatistics
from rollouts.errors import InvalidInputError
from rollouts.lib import MAX_QUERY_RESULTS, MAX_SCATTERS, cached
from rollouts.models import Run, Sample, Step
from rollouts.query import QueryResult, TimeBudget, find_samples
from rollouts.review import ViewerState

MAX_RESULT_ROWS = 2000
MAX_COUNTED_SAMPLES = (
    50_000  # samples of all steps that charts and chips are of, the newest: of a million they take 15 s
)
SEARCH_TIME_BUDGET = 0.3  # seconds of searching many steps before what was found so far is shown
# What a page that has a good result does with an error: shows the sentence, keeps the rest.
KEEP_RESULT_HEADERS = {"HX-Retarget": "#q-error", "HX-Reswap": "innerHTML", "HX-Replace-Url": "false"}


@dataclass(slots=True)
class ResultPage:
    rows: list[SampleRow]
    next: int | None


@dataclass(eq=False)
class ResultScope:
    """A step or all steps, without a query; `newest` is what its charts are of."""

    every: QueryResult
    key: tuple[object, ...]

    @cached_property
    def newest(self) -> QueryResult:
        return self.every.limit_to_newest(MAX_COUNTED_SAMPLES)

    @cached(MAX_QUERY_RESULTS)
    def axes(self) -> ChartAxes:
        return figures.compute_chart_axes(self.newest.samples)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultScope) and self.key == other.key


@dataclass(eq=False)
class StepQueryResult:
    """What was found. `error` is the sentence to show for a query that could not be read. The run's version names the
    content, so figures of an unchanged step are computed once."""

    found: QueryResult
    place: ResultScope
    key: tuple[object, ...]
    ask: StepUrlState
    error: SafeString | str = ""
    marked: bool = False  # the person has looked at samples of this run

    @cached_property
    def newest(self) -> QueryResult:
        """What charts and chips are of."""
        return self.found.limit_to_newest(MAX_COUNTED_SAMPLES)

    @property
    def counted(self) -> tuple[int, int] | None:
        """(how many of the newest steps charts and chips are of, how many there are) where they are not of all."""
        if self.newest is self.found:
            return None
        return self.newest.scope.steps.count(), self.found.scope.steps.count()

    @property
    @cached(MAX_QUERY_RESULTS)
    def total(self) -> int:
        return self.found.total

    @property
    def narrowed(self) -> bool:
        return self.found.query.root is not None

    @property
    def horizon(self) -> int | None:
        """Steps up to this one are still to be searched."""
        return self.found.cursor

    @property
    def unrecorded(self) -> list[str]:
        """Words of a query that found nothing, of which its step has nothing at all."""
        return [] if self.total or self.error else self.found.find_unrecorded_fields()

    def page(self, start: int, count: int) -> ResultPage:
        reader = self.found.scope.reader if self.marked else None
        rows = build_sample_rows(self.sliced(start, start + count + 1), reader)
        return ResultPage(rows[:count], start + count if len(rows) > count else None)

    def sliced(self, start: int, end: int) -> list[Sample]:
        """Where the newest come first, there is mostly no need to sort all."""
        if self.ask.sort in ("", "-step") and self.newest is not self.found:
            rows = list(self.newest.samples[start:end])
            if len(rows) == end - start:
                return rows
        return list(self.found.samples[start:end])

    @cached(MAX_QUERY_RESULTS)
    def figures(self) -> ResultStatistics:
        return figures.compute_result_statistics(self.newest, self.place.axes())

    @cached(MAX_SCATTERS)
    def scatter(self) -> scatter.ScatterPlot | None:
        return scatter.build_scatter_plot(self.newest, self.place.axes(), self.ask)

    @cached(MAX_QUERY_RESULTS)
    def facets(self) -> dict[str, int]:
        return self.newest.count_properties()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepQueryResult) and self.key == other.key


def load_query_result(
    run: Run,
    split: str,
    row: Step | None,
    ask: StepUrlState,
    beyond: int | None = None,
    reader: ViewerState | None = None,
) -> StepQueryResult:
    """`beyond` is the step that a search of all steps had come down to when it was last asked; `reader` who asks."""
    error: SafeString | str = ""
    who = reader.pk if reader else None
    every = search_step(run, split, row, ask, "", reader=who)
    found = every
    try:
        if ask.q.strip():
            found = search_step(
                run, split, row, ask, ask.q, TimeBudget(SEARCH_TIME_BUDGET, beyond) if row is None else None, who
            )
    except InvalidInputError as problem:
        error = render_query_error(ask.q, problem)
    step = row.pk if row else None
    place = ResultScope(every, (run.pk, run.created_at, run.version, step, split, ask.attempt))
    own = (reader,) if found.query.personal else ()
    key = (*place.key, "" if error else ask.q, choose_order(ask, row), found.cursor, *own)
    return StepQueryResult(found, place, key, ask, error, marked=bool(reader and reader.marks))


def choose_order(ask: StepUrlState, row: Step | None) -> str:
    return ask.sort or choose_default_order(row)


def choose_default_order(row: Step | None) -> str:
    """The worst of a step first; of all steps the newest."""
    return "-step" if row is None else "score"


def search_step(
    run: Run,
    split: str,
    row: Step | None,
    ask: StepUrlState,
    q: str,
    time_budget: TimeBudget | None = None,
    reader: int | None = None,
) -> QueryResult:
    """The whole answer, unless there is `time_budget`."""
    if row is None:
        return find_samples(
            run,
            split=split,
            step_kind=find_step_kind(run, split),
            attempt=ask.attempt,
            q=q,
            ordering=choose_order(ask, row),
            time_budget=time_budget,
            reader=reader,
        )
    return find_samples(
        run,
        split=split,
        step=row.step,
        step_kind=row.step_kind,
        attempt=row.attempt.key if row.superseded or ask.attempt else "",
        q=q,
        ordering=choose_order(ask, row),
        reader=reader,
    )
