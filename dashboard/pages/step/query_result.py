"""The result of the query on the step page: a page of rows, and statistics that are computed once per version."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from django.utils.safestring import SafeString

from dashboard.pages.common import SampleRow, StepUrlState, build_sample_rows, find_step_kind, render_query_error
from dashboard.pages.step.histograms import ChartAxes, ResultStatistics, compute_chart_axes, compute_result_statistics
from dashboard.pages.step.reward_parts import RewardParts, find_reward_parts
from dashboard.pages.step.scatter import ScatterPlot, build_scatter_plot
from rollouts.errors import InvalidInputError, StorageUnavailableError
from rollouts.lib import CacheSize, cached_by_key
from rollouts.models import NOT_BLIND, BlindQueues, Run, Sample, Step, StepTotals, add_steps, join_concurrent_steps
from rollouts.query import (
    RESCORE_PREFIX,
    QueryResult,
    TimeBudget,
    build_hit_pattern,
    find_samples,
    find_snippets,
    list_rescores,
)
from rollouts.review import ViewerState
from rollouts.samples import load_texts

MAX_RESULT_ROWS = 2000
# Charts and filter chips of all steps use the newest samples only: for a million they would take 15 s.
MAX_COUNTED_SAMPLES = 50_000
SEARCH_TIME_BUDGET = 0.3  # seconds of searching all steps before the first results are shown
# With an error, the page shows only the message and keeps the last result.
KEEP_RESULT_HEADERS = {"HX-Retarget": "#q-error", "HX-Reswap": "innerHTML", "HX-Replace-Url": "false"}


@dataclass(slots=True)
class ResultPage:
    """`next` is the offset of the next page."""

    rows: list[SampleRow]
    next: int | None

    @property
    def has_snippets(self) -> bool:
        return any(row.snippet for row in self.rows)

    @property
    def has_mismatches(self) -> bool:
        return any(row.has_answer_mismatch for row in self.rows)


@dataclass(frozen=True)
class ResultScope:
    """A step or all steps, without a query. The key contains the run's version, so it names the content."""

    key: tuple[object, ...]
    all_samples: QueryResult = field(compare=False)

    @cached_by_key(CacheSize.QUERY_RESULTS)
    def axes(self) -> ChartAxes:
        return compute_chart_axes(self.all_samples.limit_to_newest(MAX_COUNTED_SAMPLES).samples)

    @cached_by_key(CacheSize.QUERY_RESULTS)
    def reward_parts(self) -> RewardParts:
        return find_reward_parts(self.all_samples.samples)


@dataclass(frozen=True)
class StepQueryResult:
    """`row` is None for all steps. `error` is the message about a query that cannot be parsed. The key contains the
    run's version, so the statistics of an unchanged step are computed once."""

    key: tuple[object, ...]
    matches: QueryResult = field(compare=False)
    scope: ResultScope = field(compare=False)
    row: Step | None = field(compare=False)
    url_state: StepUrlState = field(compare=False)
    error: SafeString | str = field(default="", compare=False)
    has_viewed: bool = field(default=False, compare=False)  # the user has viewed samples of this run

    @property
    def order(self) -> str:
        return choose_order(self.url_state, self.row)

    @property
    def default_order(self) -> str:
        return choose_default_order(self.row)

    @cached_property
    def reward_parts(self) -> RewardParts:
        """The columns of reward parts and re-scores."""
        scope = self.matches.scope
        return self.scope.reward_parts().with_rescores(list_rescores(scope.run, scope.blind), self.row)

    @cached_property
    def newest(self) -> QueryResult:
        """The samples of charts and filter chips."""
        return self.matches.limit_to_newest(MAX_COUNTED_SAMPLES)

    @property
    def counted_steps(self) -> tuple[int, int] | None:
        """(steps of charts and filter chips, steps of the result); None if they are the same."""
        if self.newest is self.matches:
            return None
        return self.newest.scope.steps.count(), self.matches.scope.steps.count()

    @property
    @cached_by_key(CacheSize.QUERY_RESULTS)
    def total(self) -> int:
        return self.totals.samples if self.totals and not self.filtered else self.matches.total

    @cached_property
    def totals(self) -> StepTotals | None:
        """The numbers of the step without a query; None for all steps."""
        return add_steps(self.rows) if self.rows else None

    @cached_property
    def rows(self) -> list[Step]:
        """The rows of the step: `row`, and those of attempts that run at the same time. Empty for all steps."""
        if self.row is None:
            return []
        return [self.row] if self.url_state.attempt else join_concurrent_steps([self.row])[self.row.pk]

    @property
    def filtered(self) -> bool:
        return self.matches.query.root is not None

    @property
    def unrecorded(self) -> list[str]:
        """The fields of a query without matches that no sample of the step has."""
        return [] if self.total or self.error else self.matches.find_unrecorded_fields()

    def load_page(self, start: int, count: int) -> ResultPage:
        reader = self.matches.scope.reader if self.has_viewed else None
        rows = build_sample_rows(self.load_samples(start, start + count + 1), self.matches.scope.blind, reader)
        page = ResultPage(rows[:count], start + count if len(rows) > count else None)
        self.add_snippets(page.rows)
        return page

    def add_snippets(self, rows: list[SampleRow]) -> None:
        """Adds the text around the first hit of a query for texts. Without the texts, the rows show their ends."""
        if not rows or not build_hit_pattern(self.matches.query):
            return
        with suppress(StorageUnavailableError):
            snippets = find_snippets(load_texts([row.sample for row in rows]), self.matches.query)
            for row in rows:
                row.snippet = snippets.get(row.sample.pk)

    def load_samples(self, start: int, end: int) -> list[Sample]:
        """If the newest are first, the database seldom has to sort all samples."""
        if self.url_state.sort in ("", "-step") and self.newest is not self.matches:
            samples = list(self.newest.samples[start:end])
            if len(samples) == end - start:
                return samples
        return list(self.matches.find_first_samples(end)[start:end])

    @cached_by_key(CacheSize.QUERY_RESULTS)
    def statistics(self) -> ResultStatistics:
        return compute_result_statistics(self.newest, self.scope.axes(), len(self.rows))

    @cached_by_key(CacheSize.SCATTERS)
    def scatter(self) -> ScatterPlot | None:
        # The result of a query that fails is cached as that of no query: it must not show its ranges.
        return build_scatter_plot(self.newest, self.scope.axes(), "" if self.error else self.url_state.q)

    @cached_by_key(CacheSize.QUERY_RESULTS)
    def property_counts(self) -> dict[str, int]:
        return self.newest.count_properties()


def load_query_result(
    run: Run,
    split: str,
    row: Step | None,
    url_state: StepUrlState,
    cursor: int | None = None,
    reader: ViewerState | None = None,
) -> StepQueryResult:
    """`cursor` is the step at which the last request stopped to search all steps."""
    error: SafeString | str = ""
    reader_id = reader.pk if reader else None
    blind = reader.blind if reader else NOT_BLIND
    url_state = leave_out_unknown_sort(run, blind, url_state)
    all_samples = matches = search_step(run, split, row, url_state, "", reader=reader_id, blind=blind)
    try:
        if url_state.q.strip():
            budget = TimeBudget(SEARCH_TIME_BUDGET, cursor) if row is None else None
            matches = search_step(run, split, row, url_state, url_state.q, budget, reader_id, blind)
    except InvalidInputError as problem:
        error = render_query_error(url_state.q, problem)
    scope_key = (run.pk, run.created_at, run.version, row.pk if row else None, split, url_state.attempt)
    query_key = ("" if error else url_state.q, choose_order(url_state, row), matches.cursor)
    key = (*scope_key, *query_key, *([reader] if matches.query.personal else [blind] if blind.queues else []))
    scope = ResultScope(scope_key, all_samples)
    return StepQueryResult(key, matches, scope, row, url_state, error, has_viewed=bool(reader and reader.marks))


def leave_out_unknown_sort(run: Run, blind: BlindQueues, url_state: StepUrlState) -> StepUrlState:
    """A link may sort by a re-score that was deleted, or that the reader may not see."""
    name = url_state.sort.removeprefix("-").partition(RESCORE_PREFIX)
    if name[1] and (blind.queues or run.rescores.all().named(name[2]) is None):
        return replace(url_state, sort="")
    return url_state


def choose_order(url_state: StepUrlState, row: Step | None) -> str:
    return url_state.sort or choose_default_order(row)


def choose_default_order(row: Step | None) -> str:
    """In a step the lowest score first, in all steps the newest."""
    return "-step" if row is None else "score"


def search_step(
    run: Run,
    split: str,
    row: Step | None,
    url_state: StepUrlState,
    q: str,
    time_budget: TimeBudget | None = None,
    reader: int | None = None,
    blind: BlindQueues | None = None,
) -> QueryResult:
    """The samples of the step that match `q`, or of all steps if `row` is None; partial if the time budget ends."""
    attempt = url_state.attempt
    if row:
        attempt = row.attempt.key if row.superseded or attempt else ""
    return find_samples(
        run,
        split=split,
        step=row.step if row else None,
        step_kind=row.step_kind if row else find_step_kind(run, split),
        attempt=attempt,
        q=q,
        ordering=choose_order(url_state, row),
        time_budget=time_budget,
        reader=reader,
        blind=blind,
    )
