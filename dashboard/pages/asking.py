"""Asks the query language for the table of a step; a query that cannot be read becomes a sentence, not a failure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.pages import listing, strip
from dashboard.pages.ask import Ask
from rollouts import search
from rollouts.errors import BadInput
from rollouts.models import Run, Step
from rollouts.query import BadQuery, Query, Text

# Term of the query language, and what its chip is called.
CHIPS = (
    ("score<=0", "Zero or less"),
    ("is:truncated", "Truncated"),
    ("no:marker", "No answer marker"),
    ("is:repetition", "Repetition"),
    ("is:language-mix", "Language mix"),
    ("is:empty", "Empty"),
    ("is:duplicate", "Duplicate"),
    ("is:zerovar", "Zero-variance groups"),
    ("is:flagged", "Flagged"),
)
MOST_ROWS = 2000
# What a page that has a good result does with an error: shows the sentence, keeps the rest.
KEEP_LAST = {"HX-Retarget": "#q-error", "HX-Reswap": "innerHTML", "HX-Replace-Url": "false"}


@dataclass(slots=True)
class Page:
    rows: list[listing.Row]
    next: int | None


@dataclass(slots=True, eq=False)
class Result:
    """What was found. `error` is the sentence to show for a query that could not be read."""

    found: search.Found
    key: tuple[int, datetime, int, int | None, str, str, str]
    error: SafeString | str = ""

    @property
    def total(self) -> int:
        return counted(self)

    def page(self, start: int, count: int) -> Page:
        rows = listing.rows(self.found.samples[start : start + count + 1])
        return Page(rows[:count], start + count if len(rows) > count else None)

    def figures(self) -> listing.Figures:
        return drawn(self)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.key == other.key


@lru_cache(maxsize=512)
def counted(result: Result) -> int:
    """The run's version names the content, so figures of an unchanged step are computed once."""
    return result.found.total


@lru_cache(maxsize=512)
def drawn(result: Result) -> listing.Figures:
    return listing.figures(result.found.samples)


@lru_cache(maxsize=512)
def faceted(result: Result) -> dict[str, int]:
    return result.found.facets()


def find(run: Run, split: str, row: Step | None, ask: Ask) -> Result:
    error: SafeString | str = ""
    try:
        found = asked(run, split, row, ask, ask.q)
    except BadInput as problem:
        error = said(ask.q, problem)
        found = asked(run, split, row, ask, "")
    step = row.pk if row else None
    key = (run.pk, run.created_at, run.version, step, split, ask.attempt, "" if error else ask.q)
    return Result(found, key, error)


def asked(run: Run, split: str, row: Step | None, ask: Ask, q: str) -> search.Found:
    if row is None:
        kind = strip.kind_of(run, split)
        return search.find(run, split=split, step_kind=kind, attempt=ask.attempt, q=q, ordering=ask.sort)
    return search.find(
        run,
        split=split,
        step=row.step,
        step_kind=row.step_kind,
        attempt=row.attempt.key if row.superseded or ask.attempt else "",
        q=q,
        ordering=ask.sort,
    )


def said(q: str, problem: BadInput) -> SafeString | str:
    """The sentence, and the query with its bad part underlined."""
    if not isinstance(problem, BadQuery):
        return str(problem)
    start, end = problem.span
    if q[start:end].strip():
        return format_html("{} <code>{}<u>{}</u>{}</code>", str(problem), q[:start], q[start:end], q[end:])
    return format_html("{} <code>{}<u>&nbsp;</u></code>", str(problem), q)


def words(query: Query) -> list[str]:
    """What to mark in the text."""
    return [leaf.text for leaf in query.leaves() if isinstance(leaf, Text)]


def start_of(value: str) -> int:
    """`start=` of a further page of rows; anything odd is the first."""
    return int(value) if value.isdigit() and len(value) < 9 else 0


@dataclass(slots=True)
class Chip:
    name: str
    count: int | None
    on: bool
    link: str


def chips(ask: Ask, row: Step | None, result: Result) -> list[Chip]:
    """Those that leave something, and those that are on."""
    counts = faceted(result) if ask.q or row is None else recorded(row, result)
    shown = [
        Chip(name, counts.get(term), ask.has(term), ask.toggled(term) or "?")
        for term, name in CHIPS
        if counts.get(term) or ask.has(term)
    ]
    return shown


def recorded(row: Step, result: Result) -> dict[str, int]:
    """Counts that the step's row already holds."""
    facets = {name: int(count) for name, count in row.facets.items()}
    return {
        "score<=0": result.figures().zero_or_less,
        "is:truncated": (row.truncated or 0) + facets.get("trunc?", 0),
        "no:marker": facets.pop("no-marker", 0),
        "is:zerovar": row.zero_variance_groups,
        "is:flagged": row.flags,
        **{f"is:{name}": count for name, count in facets.items()},
    }
