"""All samples of the compared steps: the sentence about the mix of sources, the table of differences, the sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from dashboard.pages.compare import charts, table
from rollouts import compare
from rollouts.compare import ComparedMean, ComparisonTarget, UnpairedComparison

PAIRED = "paired"
VIEWS = (compare.ALL, compare.SAME_MIX, PAIRED)
BREAKDOWNS = ("source", "length", "marks")
MIN_PAIRS = 30  # with fewer, and prompts without a pair, the page opens on all samples
DRAWING_WIDTH = 100


def choose_view(requested: str, unpaired: UnpairedComparison, pairs: int, left: int) -> str:
    """`left` prompts have no pair."""
    if requested == PAIRED or (requested == compare.ALL) or (requested == compare.SAME_MIX and unpaired.has_mix):
        return requested
    if pairs >= MIN_PAIRS or (pairs and not left):
        return PAIRED
    return compare.SAME_MIX if unpaired.has_mix else compare.ALL


def build_unpaired_context(
    unpaired: UnpairedComparison,
    targets: Sequence[ComparisonTarget],
    view: str,
    pairs: int,
    left: int,
    state: Any,
) -> dict[str, Any]:
    link: Callable[..., str] = state.link
    names = {compare.ALL: _("all samples"), compare.SAME_MIX: _("same mix of sources"), PAIRED: _("paired prompts")}
    offered = [name for name in VIEWS if name != compare.SAME_MIX or unpaired.has_mix]
    context: dict[str, Any] = {
        "view": view,
        "views": [(name, names[name], link(**{"as": name}), name == view) for name in offered],
        "mix_link": link(**{"as": compare.ALL if view == compare.SAME_MIX else compare.SAME_MIX}),
        "unpaired_result": unpaired,
        "pair_count": pairs,
        "prompt_count": pairs + left,
        "prompts_differ": left > 0,
    }
    if view == PAIRED:
        return context
    breakdowns = {kind: parts for kind, parts in unpaired.breakdowns[view].items() if parts}
    by = state.by if state.by in breakdowns else next(iter(breakdowns), "")
    labels = {"source": _("source"), "length": _("length"), "marks": _("marks")}
    builder = charts.ChartBuilder(targets, unpaired.unit)
    return context | {
        "mix_sentence": build_mix_sentence(unpaired),
        "measure_rows": build_measure_rows(unpaired, view),
        "source_rows": build_source_rows(unpaired),
        "charts": [builder.build(chart) for chart in unpaired.charts[view]],
        "breakdown_charts": [builder.build_breakdown(chart, by) for chart in breakdowns.get(by, [])],
        "breakdown_kinds": [(labels[kind], link(**{"as": view, "by": kind}), kind == by) for kind in breakdowns],
        "by": by,
        "as_table": state.table,
        "table_link": link(**{"as": view, "by": by, "table": "" if state.table else "1"}),
        "small_sources": unpaired.small_sources,
        "left_out": [name_source(name) for name in unpaired.left_out],
        "sampled": [
            (target.letter, counted, total)
            for target, counted, total in zip(targets, unpaired.counted, unpaired.totals, strict=True)
            if counted < total
        ],
        "thinned": [
            (target.letter, target.samples - target.dropped, target.samples) for target in targets if target.dropped
        ],
        "min_source_prompts": compare.MIN_SOURCE_PROMPTS,
        "same_mix": view == compare.SAME_MIX,
        "others": [target.letter for target in targets[1:]],
    }


def build_mix_sentence(unpaired: UnpairedComparison) -> str:
    """What the mix of sources does to the difference of the scores, of the side where it does most."""
    row = unpaired.get_row("score")
    if not row or not row.mix:
        return ""
    changes = [
        (at, whole.change, mixed.change)
        for at, (whole, mixed) in enumerate(zip(row.all, row.mix, strict=True))
        if whole.change is not None and mixed.change is not None
    ]
    if not changes:
        return ""
    at, whole, mixed = max(changes, key=lambda change: abs(change[2] - change[1]))
    letter, sentences = compare.TARGET_LETTERS[at], []
    shift = max(unpaired.sources, key=lambda source: abs(source.shares[at] - source.shares[0]))
    share, first = (f"{100 * value:.0f}" for value in (shift.shares[at], shift.shares[0]))
    if share != first:
        text = (
            _("{letter} has more {source} samples ({share} instead of {first} %).")
            if shift.shares[at] > shift.shares[0]
            else _("{letter} has fewer {source} samples ({share} instead of {first} %).")
        )
        sentences.append(text.format(letter=letter, source=name_source(shift.name), share=share, first=first))
    before, after = format_change(whole), format_change(mixed)
    if before != after:
        text = _("The score of {letter} differs by {all}; with the mix of sources of A by {mix}.")
        sentences.append(text.format(letter=letter, all=before, mix=after))
    return " ".join(sentences)


def format_change(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def name_source(name: str) -> str:
    return _("other sources") if name == compare.OTHER_SOURCES else name or _("no data source")


@dataclass(frozen=True, slots=True)
class IntervalDrawing:
    """A 95 % interval as a line with a dot, in pixels; `zero` is the position of 0."""

    zero: float
    dot: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SideCell:
    letter: str
    shown: table.FormattedStatistic
    drawing: IntervalDrawing | None


@dataclass(frozen=True, slots=True)
class MeasureLine:
    name: str
    first: str
    cells: list[SideCell]


def build_measure_rows(unpaired: UnpairedComparison, view: str) -> list[MeasureLine]:
    rows = []
    for row in unpaired.rows:
        means = (row.mix if view == compare.SAME_MIX else row.all) or row.all
        formatted = [table.format_statistic(row.name, mean) for mean in means]
        drawings = build_interval_drawings(means[1:])
        cells = [
            SideCell(compare.TARGET_LETTERS[at], shown, drawing)
            for at, (shown, drawing) in enumerate(zip(formatted[1:], drawings, strict=True), 1)
        ]
        rows.append(MeasureLine(name_measure(row.name, unpaired), formatted[0].value, cells))
    return rows


def name_measure(name: str, unpaired: UnpairedComparison) -> str:
    if name.startswith(compare.PART):
        return _("part: {name}").format(name=name.removeprefix(compare.PART))
    if name.startswith(compare.MARK):
        title = table.name_mark(name.removeprefix(compare.MARK))
        return title[:1].lower() + title[1:]
    names = {
        "score": _("mean score"),
        "length": _("mean length (tokens)") if unpaired.unit == "tokens" else _("mean length (chars)"),
        "truncated": _("truncated?") if unpaired.truncation_inferred else _("truncated"),
        "zero-variance": _("zero variance"),
    }
    return names.get(name, name)


def build_interval_drawings(means: Sequence[ComparedMean]) -> list[IntervalDrawing | None]:
    """Returns a drawing for each side, None for a side without an interval. All sides of a row have one scale."""
    ends = [abs(end) for mean in means for end in (*(mean.interval or ()), mean.change or 0)]
    scale = max(ends, default=0) * 1.1
    return [build_interval_drawing(mean, scale) for mean in means]


def build_interval_drawing(mean: ComparedMean, scale: float) -> IntervalDrawing | None:
    if mean.change is None or mean.interval is None or not scale:
        return None
    places = [round(DRAWING_WIDTH / 2 * (1 + value / scale), 1) for value in (0.0, mean.change, *mean.interval)]
    return IntervalDrawing(*places)


@dataclass(frozen=True, slots=True)
class SourceLine:
    name: str
    shares: list[str]
    prompts: list[int]
    scores: list[table.FormattedStatistic]


def build_source_rows(unpaired: UnpairedComparison) -> list[SourceLine]:
    return [
        SourceLine(
            name_source(row.name),
            [f"{100 * share:.0f} %" for share in row.shares],
            row.prompts,
            [table.format_statistic("score", mean) for mean in row.scores],
        )
        for row in unpaired.sources
    ]
