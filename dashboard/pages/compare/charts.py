"""Distributions of the compared sides on one axis: bars for two sides, lines for more. Each opens its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from dashboard.pages.compare import table
from rollouts import compare
from rollouts.compare import Bin, ComparisonTarget, Distribution
from rollouts.query import quote_value

WIDTH, HEIGHT = 480, 150
TOP, BOTTOM, LEFT = 12, 18, 16
SMALL_WIDTH, SMALL_HEIGHT = 240, 90
MAX_LABELS = 6


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A bar or a point. `text` describes it; `link` opens its samples."""

    key: str
    classes: str
    link: str
    text: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class ChartLine:
    classes: str
    points: str


@dataclass(frozen=True, slots=True)
class TableLine:
    """A bin in the table of a chart: its name, and for each side (count, share, link)."""

    name: str
    cells: list[tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class DistributionChart:
    """`labels` are (x, text) below the axis."""

    key: str
    title: str
    summary: str
    width: int
    height: int
    base: int
    marks: list[ChartMark]
    lines: list[ChartLine]
    labels: list[tuple[float, str]]
    rows: list[TableLine]


class ChartBuilder:
    def __init__(self, targets: Sequence[ComparisonTarget], unit: str) -> None:
        self.targets = targets
        self.unit = unit
        self.classes = table.build_letter_classes(targets)
        no_text = any(row.facets.get("no-text") for target in targets for row in target.rows)
        # A length in characters leaves out responses without text, which a query for short ones finds.
        self.with_text = "-no:text" if unit != "tokens" and no_text else ""

    def build(self, chart: Distribution) -> DistributionChart:
        titles = {"score": _("score"), "length": _("length (tokens)") if self.unit == "tokens" else _("length (chars)")}
        medians = " → ".join("–" if value is None else format_value(value) for value in chart.medians)
        summary = _("median {medians}").format(medians=medians)
        key = "score" if chart.name == "score" else "tokens" if self.unit == "tokens" else "len"
        term = self.with_text if chart.name == "length" else ""
        return self.draw(chart, chart.name, titles[chart.name], summary, key, term, WIDTH, HEIGHT)

    def build_breakdown(self, chart: Distribution, kind: str) -> DistributionChart:
        title, term = self.describe_breakdown(chart.name, kind)
        return self.draw(chart, f"{kind}-{chart.name}", title, "", "score", term, SMALL_WIDTH, SMALL_HEIGHT)

    def describe_breakdown(self, name: str, kind: str) -> tuple[str, str]:
        """The name of a part of the samples, and the query term that finds it (empty if there is none)."""
        if kind == "source":
            if name == compare.OTHER_SOURCES:
                return _("other sources"), ""
            return name or _("no data source"), f"source={quote_value(name)}" if name else ""
        if kind == "length":
            low, _dash, high = name.partition("–")
            column = "tokens" if self.unit == "tokens" else "len"
            terms = [f"{column}>={low}" if low else "", f"{column}<{high}" if high else "", self.with_text]
            text = f"{low}–{high}" if low and high else f"< {high}" if high else f"≥ {low}"
            return text, " ".join(filter(None, terms))
        if name == "truncated":
            return _("truncated"), "is:truncated"
        mark = name.removeprefix(compare.MARK)
        return table.name_mark(mark), "no:marker" if mark == "no-marker" else f"is:{mark}"

    def draw(
        self, chart: Distribution, key: str, title: str, summary: str, column: str, term: str, width: int, height: int
    ) -> DistributionChart:
        highest = max((share for shares in chart.shares for share in shares), default=0) or 1
        base, slot = height - BOTTOM, (width - 2 * LEFT) / len(chart.bins)
        sides = len(self.targets)
        marks, lines = [], []
        for at, target in enumerate(self.targets):
            classes = self.classes[target.letter]
            points = []
            for number, edges in enumerate(chart.bins):
                count, share = chart.counts[at][number], chart.shares[at][number]
                size = (base - TOP) * share / highest
                text = _("{letter}: {name}, {count} samples, {share} %").format(
                    letter=target.letter, name=name_bin(edges), count=f"{count:,}", share=f"{100 * share:.1f}"
                )
                link = self.link_samples(target, f"{term} {build_bin_terms(edges, column)}".strip())
                mark_key = f"{key}-{target.letter}-{number}".replace("\0", "")
                if sides == 2:
                    x = LEFT + slot * number + slot * (0.08 + 0.42 * at)
                    box = (round(x, 1), round(base - size, 1), round(slot * 0.42, 1), round(size, 1))
                else:
                    x = LEFT + slot * (number + 0.5)
                    points.append(f"{x:.1f},{base - size:.1f}")
                    box = (round(x, 1), round(base - size, 1), 0.0, 0.0)
                if count:
                    marks.append(ChartMark(mark_key, classes, link, text, *box))
            if points:
                lines.append(ChartLine(classes, " ".join(points)))
        labels = place_labels(chart.bins, slot, width)
        return DistributionChart(
            key, title, summary, width, height, base, marks, lines, labels, self.build_rows(chart, column, term)
        )

    def build_rows(self, chart: Distribution, column: str, term: str) -> list[TableLine]:
        rows = []
        for number, edges in enumerate(chart.bins):
            terms = f"{term} {build_bin_terms(edges, column)}".strip()
            cells = [
                (chart.counts[at][number], f"{100 * chart.shares[at][number]:.1f} %", self.link_samples(target, terms))
                for at, target in enumerate(self.targets)
            ]
            rows.append(TableLine(name_bin(edges), cells))
        return rows

    def link_samples(self, target: ComparisonTarget, terms: str) -> str:
        """A trajectory counts once, by its last sample."""
        final = " is:final" if any(row.trajectories < row.samples for row in target.rows) else ""
        query = urlencode({"split": target.step.split, "q": f"{terms}{final}"})
        return f"{reverse('step', args=[target.run.uid, target.step.step])}?{query}"


def build_bin_terms(edges: Bin, column: str) -> str:
    """The query terms of the values in a bin."""
    if edges.low is not None and edges.low == edges.high:
        return f"{column}={format_edge(edges.low)}"
    low = f"{column}>={format_edge(edges.low)}" if edges.low is not None else ""
    high = f"{column}<{format_edge(edges.high)}" if edges.high is not None else ""
    return f"{low} {high}".strip()


def format_edge(value: float) -> str:
    """A number as the query language reads it, without loss."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def name_bin(edges: Bin) -> str:
    low, high = (None if edge is None else format_value(edge) for edge in (edges.low, edges.high))
    if low is not None and low == high:
        return low
    return f"≥ {low}" if high is None else f"< {high}" if low is None else f"{low} – {high}"


def format_value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("-", "−")


def place_labels(bins: Sequence[Bin], slot: float, width: int) -> list[tuple[float, str]]:
    """(x, text) of as many values as there is room for: below its bar, or below the edge between two bins."""
    exact = bins[0].low == bins[0].high
    every = -(-len(bins) // max(2, MAX_LABELS * width // WIDTH))
    lows = [(number, edges.low) for number, edges in enumerate(bins) if edges.low is not None][::every]
    return [(round(LEFT + slot * (number + exact / 2), 1), format_value(low)) for number, low in lows]
