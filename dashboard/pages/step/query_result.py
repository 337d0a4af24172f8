"""Asks the query language for the table of a step; a query that cannot be read becomes a sentence, not a failure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from django.utils.safestring import SafeString

from dashboard.pages.common import sample_rows, step_strip
from dashboard.pages.common.query_messages import said
from dashboard.pages.common.url_state import Ask
from dashboard.pages.step import filter_chips, scatter
from dashboard.pages.step import histograms as figures
from dashboard.pages.step.histograms import Figures, Frame
from rollouts.errors import BadInput
from rollouts.lib.cache import MAX_QUERY_RESULTS, MAX_SCATTERS, cached
from rollouts.models import Run, Sample, Step
from rollouts.query import search
from rollouts.query.body_scan import Patience
from rollouts.query.missing_fields import unrecorded
from rollouts.review import viewed

MOST_ROWS = 2000
MOST_COUNTED = 50_000  # samples of all steps that charts and chips are of, the newest: of a million they take 15 s
PATIENCE = 0.3  # seconds of searching many steps before what was found so far is shown
# What a page that has a good result does with an error: shows the sentence, keeps the rest.
KEEP_LAST = {"HX-Retarget": "#q-error", "HX-Reswap": "innerHTML", "HX-Replace-Url": "false"}


@dataclass(slots=True)
class Page:
    rows: list[sample_rows.Row]
    next: int | None


@dataclass(eq=False)
class Place:
    """A step or all steps, without a query; `newest` is what its charts are of."""

    every: search.Found
    key: tuple[object, ...]

    @cached_property
    def newest(self) -> search.Found:
        return self.every.newest(MOST_COUNTED)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.key == other.key


@dataclass(eq=False)
class Result:
    """What was found. `error` is the sentence to show for a query that could not be read. The run's version names the
    content, so figures of an unchanged step are computed once."""

    found: search.Found
    place: Place
    key: tuple[object, ...]
    ask: Ask
    error: SafeString | str = ""
    marked: bool = False  # the person has looked at samples of this run

    @cached_property
    def newest(self) -> search.Found:
        """What charts and chips are of."""
        return self.found.newest(MOST_COUNTED)

    @property
    def counted(self) -> tuple[int, int] | None:
        """(how many of the newest steps charts and chips are of, how many there are) where they are not of all."""
        if self.newest is self.found:
            return None
        return self.newest.scope.steps.count(), self.found.scope.steps.count()

    @property
    def total(self) -> int:
        return counted(self)

    @property
    def narrowed(self) -> bool:
        return self.found.query.root is not None

    @property
    def horizon(self) -> int | None:
        """Steps up to this one are still to be searched."""
        return self.found.horizon

    @property
    def unrecorded(self) -> list[str]:
        """Words of a query that found nothing, of which its step has nothing at all."""
        return [] if self.total or self.error else unrecorded(self.found.query, self.found.scope)

    def page(self, start: int, count: int) -> Page:
        reader = self.found.scope.reader if self.marked else None
        rows = sample_rows.rows(self.sliced(start, start + count + 1), reader)
        return Page(rows[:count], start + count if len(rows) > count else None)

    def sliced(self, start: int, end: int) -> list[Sample]:
        """Where the newest come first, there is mostly no need to sort all."""
        if self.ask.sort in ("", "-step") and self.newest is not self.found:
            rows = list(self.newest.samples[start:end])
            if len(rows) == end - start:
                return rows
        return list(self.found.samples[start:end])

    def figures(self) -> Figures:
        return drawn(self)

    def frame(self) -> Frame:
        return framed(self.place)

    def scatter(self) -> scatter.Scatter | None:
        return scattered(self)

    def facets(self) -> dict[str, int]:
        return faceted(self)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.key == other.key


@cached(MAX_QUERY_RESULTS)
def counted(result: Result) -> int:
    return result.found.total


@cached(MAX_QUERY_RESULTS)
def drawn(result: Result) -> Figures:
    return figures.of(result.newest, result.frame())


@cached(MAX_QUERY_RESULTS)
def framed(place: Place) -> Frame:
    return figures.frame(place.newest.samples)


@cached(MAX_SCATTERS)
def scattered(result: Result) -> scatter.Scatter | None:
    return scatter.of(result.newest, result.frame(), result.ask)


@cached(MAX_QUERY_RESULTS)
def faceted(result: Result) -> dict[str, int]:
    return result.newest.facets()


def find(
    run: Run, split: str, row: Step | None, ask: Ask, beyond: int | None = None, reader: viewed.Reader | None = None
) -> Result:
    """`beyond` is the step that a search of all steps had come down to when it was last asked; `reader` who asks."""
    error: SafeString | str = ""
    who = reader.pk if reader else None
    every = asked(run, split, row, ask, "", reader=who)
    found = every
    try:
        if ask.q.strip():
            found = asked(run, split, row, ask, ask.q, Patience(PATIENCE, beyond) if row is None else None, who)
    except BadInput as problem:
        error = said(ask.q, problem)
    step = row.pk if row else None
    place = Place(every, (run.pk, run.created_at, run.version, step, split, ask.attempt))
    own = (reader,) if found.query.personal else ()
    key = (*place.key, "" if error else ask.q, order(ask, row), found.horizon, *own)
    return Result(found, place, key, ask, error, marked=bool(reader and reader.marks))


def order(ask: Ask, row: Step | None) -> str:
    return ask.sort or usual(row)


def usual(row: Step | None) -> str:
    """The worst of a step first; of all steps the newest."""
    return "-step" if row is None else "score"


def asked(
    run: Run,
    split: str,
    row: Step | None,
    ask: Ask,
    q: str,
    patience: Patience | None = None,
    reader: int | None = None,
) -> search.Found:
    """The whole answer, unless there is `patience`."""
    if row is None:
        return search.find(
            run,
            split=split,
            step_kind=step_strip.kind_of(run, split),
            attempt=ask.attempt,
            q=q,
            ordering=order(ask, row),
            patience=patience,
            reader=reader,
        )
    return search.find(
        run,
        split=split,
        step=row.step,
        step_kind=row.step_kind,
        attempt=row.attempt.key if row.superseded or ask.attempt else "",
        q=q,
        ordering=order(ask, row),
        reader=reader,
    )


def offered(ask: Ask, row: Step | None, result: Result) -> list[filter_chips.Chip]:
    counts = (
        filter_chips.recorded(row, result.figures().zero_or_less) if row and not result.narrowed else result.facets()
    )
    return filter_chips.shown(ask, {**counts, "is:unseen": unseen(result)})


def unseen(result: Result) -> int:
    """How many of what was found the person has not looked at; 0 while they have looked at none, and nothing is new."""
    if not result.marked:
        return 0
    looked = result.found.samples.order_by().filter(result.found.asks("is:seen")).count()
    return result.total - looked if looked else 0
