"""The scatter plot of score and length: a dot for each trajectory, or one for neighbours if there are too many.

The server renders it, so it works without JavaScript and changes with the query.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import Any

from django.db.models import Avg, Case, Count, F, IntegerField, QuerySet, Value, When
from django.db.models.functions import Cast, Greatest, Least

from dashboard.pages.common import grade_score
from dashboard.pages.step.histograms import ChartAxes, ScoreBin, build_score_bins
from rollouts.models import Sample
from rollouts.query import QueryResult, RangeTerm, find_number_ranges

MAX_DOTS = 2000
GRID_COLUMNS, GRID_ROWS = 72, 26  # cells in which dots are merged
WIDTH, HEIGHT = 1000, 100  # units of the SVG
TABLE_COLUMNS = 5
NO_LENGTH = -1  # instead of a column: the text was not recorded, and the stored length is 0
GOLDEN_RATIO = 0.6180339887


@dataclass(slots=True)
class ScatterPlot:
    """`paths` are (class, SVG path of dots) in units of `WIDTH` x `HEIGHT`. The score's axis is from `low` to `high`,
    that of the length from 0 to `right`; `key` is the length's name in the query language. `region` is the range of
    the query in percent. `rows` are a table of the same data, {name, cells: [{count, term}]}; its columns begin at
    `edges`."""

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
    rows: list[dict[str, Any]] = field(default_factory=list)
    region: tuple[float, float, float, float] | None = None


def build_scatter_plot(result: QueryResult, axes: ChartAxes, q: str) -> ScatterPlot | None:
    """None if no sample has a score and a length. Two queries, or three if dots are merged."""
    if axes.low is None or axes.high is None:
        return None
    final = result.samples.order_by().filter(final=True, score__isnull=False)
    # Without its text, the length of a response in characters is unknown.
    measured = final if axes.in_tokens else final.exclude(result.build_term_condition("no:text"))
    points = list(measured.values_list("score", axes.column)[: MAX_DOTS + 1])
    if not points:
        return None
    low, high = pad_score_axis(axes.low, axes.high)
    plot = ScatterPlot(low, high, round_axis_end(axes.longest), axes.key, len(points) > MAX_DOTS)
    plot.edges = sorted({plot.right * at // TABLE_COLUMNS for at in range(TABLE_COLUMNS)})
    bins = build_score_bins(axes)
    counts = count_by_bin(final, result, bins, plot.edges, axes)
    plot.count = sum(count for (_bin, column), count in counts.items() if column != NO_LENGTH)
    plot.rows = build_table_rows(counts, bins, plot)
    if plot.merged:
        plot.paths = build_merged_dots(measured, plot, axes.column)
    else:
        plot.paths = build_dots([(score, length or 0) for score, length in points], plot)
    if axes.limit and axes.limit <= plot.right:
        plot.limit_at, plot.limit = axes.limit, round(100 * axes.limit / plot.right, 2)
    plot.region = compute_query_region(q, plot)
    return plot


def round_axis_end(longest: int) -> int:
    """The first of 1, 1.2, 1.5, 2, … times a power of ten that is at least `longest`."""
    size: int = 10 ** floor(log10(max(longest, 10)))
    factors = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(ceil(size * factor) for factor in factors if size * factor >= longest)


def pad_score_axis(low: float, high: float) -> tuple[float, float]:
    """The score's axis: includes 0 and 1 if they are near, and is never empty."""
    low, high = min(low, 0.0) if low > -10 and high <= 10 else low, max(high, 1.0) if 0 < high <= 1 else high
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def scale_score(score: float, low: float, high: float) -> float:
    """0 at the top, `HEIGHT` at the bottom, with a margin of 8 for the dots."""
    return 8 + (HEIGHT - 16) * (high - score) / (high - low)


def build_dots(points: list[tuple[float, int]], plot: ScatterPlot) -> list[tuple[str, str]]:
    """One dot per point, moved slightly up or down so that equal scores do not hide each other."""
    dots: dict[str, list[str]] = {"bad": [], "partial": [], "good": []}
    for at, (score, length) in enumerate(points):
        y = scale_score(score, plot.low, plot.high) + 9 * ((at * GOLDEN_RATIO) % 1 - 0.5)
        dots[grade_score(score)].append(f"M{WIDTH * length / plot.right:.0f} {y:.1f}h.1")
    return [(f"dot {grade}", "".join(marks)) for grade, marks in dots.items() if marks]


def build_merged_dots(final: QuerySet[Sample], plot: ScatterPlot, column: str) -> list[tuple[str, str]]:
    """One dot per grid cell; the class `n0` to `n3` gives its size."""
    x = Cast(F(column) * GRID_COLUMNS / Value(plot.right), IntegerField())
    y = Cast((F("score") - Value(plot.low)) * GRID_ROWS / Value(plot.high - plot.low), IntegerField())
    samples = final.annotate(x=Least(x, Value(GRID_COLUMNS - 1)), y=Greatest(Least(y, Value(GRID_ROWS - 1)), Value(0)))
    dots: dict[str, list[str]] = {}
    for cell in samples.values("x", "y").annotate(count=Count("pk"), score=Avg("score")):
        size = sum(cell["count"] > minimum for minimum in (1, 4, 16))
        left, top = WIDTH * (cell["x"] + 0.5) / GRID_COLUMNS, scale_score(cell["score"], plot.low, plot.high)
        dots.setdefault(f"dot {grade_score(cell['score'])} n{size}", []).append(f"M{left:.0f} {top:.1f}h.1")
    return [(css_class, "".join(marks)) for css_class, marks in sorted(dots.items())]


def count_by_bin(
    final: QuerySet[Sample], result: QueryResult, bins: list[ScoreBin], edges: list[int], axes: ChartAxes
) -> Counter[tuple[int, int]]:
    """{(bin, column of the table or `NO_LENGTH`): trajectories}"""
    bin_cases = [When(result.build_term_condition(bar.term), then=Value(at)) for at, bar in enumerate(bins)]
    column_cases = [When(**{f"{axes.column}__lt": edge}, then=Value(at)) for at, edge in enumerate(edges[1:])]
    if not axes.in_tokens:
        column_cases.insert(0, When(result.build_term_condition("no:text"), then=Value(NO_LENGTH)))
    rows = (
        final.annotate(
            bin=Case(*bin_cases, default=Value(-1), output_field=IntegerField()),
            column=Case(*column_cases, default=Value(len(edges) - 1), output_field=IntegerField()),
        )
        .values("bin", "column")
        .annotate(count=Count("pk"))
    )
    return Counter({(row["bin"], row["column"]): row["count"] for row in rows if row["bin"] >= 0})


def build_table_rows(counts: Counter[tuple[int, int]], bins: list[ScoreBin], plot: ScatterPlot) -> list[dict[str, Any]]:
    ends = [str(max(edge - 1, 0)) for edge in plot.edges[1:]] + [""]
    ranges = [f"{plot.key}:{first}..{end}" for first, end in zip(plot.edges, ends, strict=True)]
    rows = []
    for at, bar in enumerate(bins):
        terms = [f"{bar.term} {term}" for term in ranges]
        if counts[at, NO_LENGTH]:  # a query for short responses finds them too
            terms[0] += " -no:text"
        cells = [{"count": counts[at, column], "term": term} for column, term in enumerate(terms)]
        rows.append({"name": bar.name, "cells": cells})
    return rows


def compute_query_region(q: str, plot: ScatterPlot) -> tuple[float, float, float, float] | None:
    """(x, y, width, height) in percent of the plot; None if the query limits neither score nor length."""
    terms = [term for term in find_number_ranges(q) if term.key in ("score", plot.key)]
    if not terms:
        return None
    low, high = narrow_axis(terms, "score", plot.low, plot.high)
    short, long = narrow_axis(terms, plot.key, 0, plot.right)
    left, top = 100 * short / plot.right, scale_score(high, plot.low, plot.high) - 5
    width, height = 100 * (long - short) / plot.right, scale_score(low, plot.low, plot.high) + 5 - top
    return round(left, 2), round(top, 2), round(max(width, 0.5), 2), round(max(height, 1), 2)


def narrow_axis(terms: list[RangeTerm], key: str, low: float, high: float) -> tuple[float, float]:
    """The part of an axis from `low` to `high` that the terms leave."""
    lows = [term.low for term in terms if term.key == key and term.low is not None]
    highs = [term.high for term in terms if term.key == key and term.high is not None]
    return min(max([low, *lows]), high), max(min([high, *highs]), low)
