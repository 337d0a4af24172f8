"""Score against length: a point for each trajectory, or places that hold many where they are too many to tell apart.
Drawn at the server, so that it is there without a script and changes with the query like all else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, floor, log10

from django.db.models import Avg, Case, Count, F, IntegerField, QuerySet, Value, When
from django.db.models.functions import Cast, Greatest, Least

from dashboard.pages.common import StepUrlState, grade_score
from dashboard.pages.step.histograms import ChartAxes, ScoreBin, build_score_bins
from rollouts.models import Sample
from rollouts.query import QueryResult, RangeTerm, find_number_ranges

MAX_DOTS = 2000
WIDE, HIGH = 72, 26  # places across and up, where points are put together
ACROSS, UP = 1000, 100  # the drawing's own units
COLUMNS = 5
GOLDEN = 0.6180339887


@dataclass(frozen=True, slots=True)
class ScatterTableCell:
    """Of the table: how many, and the terms that find them."""

    count: int
    term: str


@dataclass(frozen=True, slots=True)
class ScatterTableRow:
    name: str
    cells: tuple[ScatterTableCell, ...]


@dataclass(slots=True)
class ScatterPlot:
    """`paths` are (class, SVG path of dots) in units of `ACROSS` x `UP`. `low`, `high` are the axis of the score, 0 and
    `right` that of the length, named `key` in the query language. `region` is what the query keeps, in per cent."""

    low: float
    high: float
    right: int
    key: str
    merged: bool
    count: int = 0
    paths: list[tuple[str, str]] = field(default_factory=list)
    limit: float | None = None
    limit_at: int | None = None
    edges: list[int] = field(default_factory=list)
    lines: list[ScatterTableRow] = field(default_factory=list)
    region: tuple[float, float, float, float] | None = None

    @property
    def starts(self) -> list[int]:
        """Where the table's columns begin."""
        return self.edges[:-1]


def build_scatter_plot(found: QueryResult, spans: ChartAxes, ask: StepUrlState) -> ScatterPlot | None:
    """None where nothing was scored. Two queries, or three where points are put together."""
    if spans.low is None or spans.high is None:
        return None
    right, low, high = round_axis_end(spans.longest), *pad_score_axis(spans.low, spans.high)
    final = found.samples.order_by().filter(final=True, score__isnull=False)
    points = list(final.values_list("score", spans.column)[: MAX_DOTS + 1])
    merged = len(points) > MAX_DOTS
    made = ScatterPlot(low, high, right, spans.key, merged)
    blank = build_score_bins(spans)
    made.edges = compute_length_edges(right)
    counts = count_by_bin(final, found, blank, made.edges, spans.column)
    made.count, made.lines = counts.total(), build_table_rows(counts, blank, made)
    if merged:
        made.paths = build_merged_dots(final, made, spans.column)
    else:
        made.paths = build_dots([(score, length or 0) for score, length in points], made)
    if spans.limit and spans.limit <= right:
        made.limit_at, made.limit = spans.limit, round(100 * spans.limit / right, 2)
    made.region = compute_query_region(ask, made)
    return made


def round_axis_end(longest: int) -> int:
    """The end of the length's axis: the first of 1, 1.2, 1.5, 2, 2.5, … times a power of ten that holds it."""
    size: int = 10 ** floor(log10(max(longest, 10)))
    return next(ceil(size * by) for by in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if size * by >= longest)


def pad_score_axis(low: float, high: float) -> tuple[float, float]:
    """The score's axis: from 0 or lower to 1 or higher where that is near, with room for the dots."""
    low, high = min(low, 0.0) if low > -10 and high <= 10 else low, max(high, 1.0) if 0 < high <= 1 else high
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def scale_score(score: float, low: float, high: float) -> float:
    """0 at the top, `UP` at the bottom, with a margin of 8 for the dots."""
    return 8 + (UP - 16) * (high - score) / (high - low)


def build_dots(points: list[tuple[float, int]], made: ScatterPlot) -> list[tuple[str, str]]:
    """A dot each, moved up or down by a hair so that equal scores show how many they are."""
    found: dict[str, list[str]] = {"bad": [], "partial": [], "good": []}
    for at, (score, length) in enumerate(points):
        y = scale_score(score, made.low, made.high) + 9 * ((at * GOLDEN) % 1 - 0.5)
        found[grade_score(score)].append(f"M{ACROSS * length / made.right:.0f} {y:.1f}h.1")
    return [(f"dot {kind}", "".join(marks)) for kind, marks in found.items() if marks]


def build_merged_dots(final: QuerySet[Sample], made: ScatterPlot, column: str) -> list[tuple[str, str]]:
    """Points put together in `WIDE` x `HIGH` places: the more there are, the larger the dot."""
    across = Cast(F(column) * WIDE / Value(made.right), IntegerField())
    height = Cast((F("score") - Value(made.low)) * HIGH / Value(made.high - made.low), IntegerField())
    inside = final.annotate(x=Least(across, Value(WIDE - 1)), y=Greatest(Least(height, Value(HIGH - 1)), Value(0)))
    found: dict[str, list[str]] = {}
    for row in inside.values("x", "y").annotate(count=Count("pk"), score=Avg("score")):
        y = scale_score(row["score"], made.low, made.high)
        kind = f"dot {grade_score(row['score'])} n{sum(row['count'] > least for least in (1, 4, 16))}"
        found.setdefault(kind, []).append(f"M{ACROSS * (row['x'] + 0.5) / WIDE:.0f} {y:.1f}h.1")
    return [(kind, "".join(marks)) for kind, marks in sorted(found.items())]


# --- the same as a table ----------------------------------------------------------------------------------------------


def compute_length_edges(right: int) -> list[int]:
    """Where the table's columns of lengths begin, and where the last one ends."""
    return sorted({right * at // COLUMNS for at in range(COLUMNS + 1)})


def count_by_bin(
    final: QuerySet[Sample], found: QueryResult, blank: list[ScoreBin], edges: list[int], column: str
) -> Counter[tuple[int, int]]:
    """{(bin, column): trajectories}"""
    bins = [When(found.build_term_condition(one.term), then=Value(at)) for at, one in enumerate(blank)]
    wide = [When(**{f"{column}__lt": edge}, then=Value(at)) for at, edge in enumerate(edges[1:-1])]
    rows = (
        final.annotate(
            bin=Case(*bins, default=Value(-1), output_field=IntegerField()),
            column=Case(*wide, default=Value(len(edges) - 2), output_field=IntegerField()),
        )
        .values("bin", "column")
        .annotate(count=Count("pk"))
    )
    return Counter({(row["bin"], row["column"]): row["count"] for row in rows if row["bin"] >= 0})


def build_table_rows(
    counts: Counter[tuple[int, int]], blank: list[ScoreBin], made: ScatterPlot
) -> list[ScatterTableRow]:
    last = len(made.edges) - 2

    def cell(at: int, column: int) -> ScatterTableCell:
        first, end = made.edges[column], "" if column == last else max(made.edges[column + 1] - 1, 0)
        return ScatterTableCell(counts[at, column], f"{blank[at].term} {made.key}:{first}..{end}")

    return [
        ScatterTableRow(one.name, tuple(cell(at, column) for column in range(last + 1))) for at, one in enumerate(blank)
    ]


# --- what the query keeps ---------------------------------------------------------------------------------------------


def compute_query_region(ask: StepUrlState, made: ScatterPlot) -> tuple[float, float, float, float] | None:
    """(x, y, width, height) in per cent of the drawing, where the query bounds score or length; else None."""
    own = [leaf for leaf in find_number_ranges(ask.q) if leaf.key in ("score", made.key)]
    if not own:
        return None
    low, high = narrow_axis(own, "score", made.low, made.high)
    short, long = narrow_axis(own, made.key, 0, made.right)
    left, top = 100 * short / made.right, scale_score(high, made.low, made.high) - 5
    width, height = 100 * (long - short) / made.right, scale_score(low, made.low, made.high) + 5 - top
    return round(left, 2), round(top, 2), round(max(width, 0.5), 2), round(max(height, 1), 2)


def narrow_axis(own: list[RangeTerm], key: str, low: float, high: float) -> tuple[float, float]:
    """What is left of an axis from `low` to `high`."""
    lows = [leaf.low for leaf in own if leaf.key == key and leaf.low is not None]
    highs = [leaf.high for leaf in own if leaf.key == key and leaf.high is not None]
    return min(max([low, *lows]), high), max(min([high, *highs]), low)
