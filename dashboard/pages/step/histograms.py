"""Figures over the whole result of a query: counts, score bars, means by source. Each bar is a term of the query."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import Any

from django.db.models import Avg, Count, Max, Min, Q, QuerySet

from dashboard.pages.common import grade_score
from rollouts.models import Sample
from rollouts.query import QueryResult, quote_value

MAX_BINS = 10
# Bins that a reward is read by: name, grade, the lower bound as a term, the upper bound as a term.
REWARD_BINS = (
    ("<0", "bad", "", "score<0"),
    ("=0", "bad", "score>=0", "score<=0"),
    ("0–.5", "partial", "score>0", "score<0.5"),
    (".5–1", "partial", "score>=0.5", "score<1"),
    ("=1", "good", "score>=1", ""),
)


@dataclass(frozen=True, slots=True)
class ChartAxes:
    """What the axes of a step's charts span, whatever the query leaves of it. Lengths are in tokens where all samples
    have them, else in characters; `limit` is the length at which samples were truncated, in tokens."""

    low: float | None
    high: float | None
    longest: int
    in_tokens: bool
    limit: int | None = None
    advantages: bool = False

    @property
    def key(self) -> str:
        """The length's name in the query language."""
        return "tokens" if self.in_tokens else "len"

    @property
    def column(self) -> str:
        return "tokens" if self.in_tokens else "chars"


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """A bar; `below` and `above` are its bounds as terms, empty where it is open."""

    name: str
    grade: str
    above: str
    below: str
    count: int = 0
    height: float = 0.0

    @property
    def term(self) -> str:
        if self.above == "score>=0" and self.below == "score<=0":
            return "score=0"
        return f"{self.above} {self.below}".strip()

    @property
    def y(self) -> float:
        return 100 - self.height


@dataclass(slots=True)
class ResultStatistics:
    """Over all samples of the query. Scores, groups and verdicts count each trajectory once, by its last sample."""

    total: int = 0
    zero_or_less: int = 0
    mean: float | None = None
    judged: int = 0
    right: int = 0
    groups: int = 0
    length: float | None = None
    bins: list[ScoreBin] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)


def compute_chart_axes(samples: QuerySet[Sample]) -> ChartAxes:
    """Of a step's samples, before any query narrows them."""
    told = samples.order_by().aggregate(
        rows=Count("pk"), counted=Count("tokens"), least=Min("score"), most=Max("score"), most_chars=Max("chars"),
        most_tokens=Max("tokens"), limit=Max("tokens", filter=Q(truncated=True)), advantages=Count("advantage"),
    )  # fmt: skip
    whole = told["rows"] > 0 and told["counted"] == told["rows"]
    longest = told["most_tokens"] if whole else told["most_chars"]
    limit = told["limit"] if whole else None
    return ChartAxes(told["least"], told["most"], longest or 0, whole, limit, told["advantages"] > 0)


def build_score_bins(spans: ChartAxes) -> list[ScoreBin]:
    """Those of `REWARDS` for scores within -1 … 1, else about ten between round numbers."""
    if spans.low is None or spans.high is None:
        return []
    if spans.low >= -1 and spans.high <= 1:
        return [ScoreBin(*one) for one in REWARD_BINS]
    edges = compute_round_edges(spans.low, spans.high)
    return [
        ScoreBin(
            f"{low:g}".replace("e+", "e"), grade_score((low + high) / 2), f"score>={low:.15g}", f"score<{high:.15g}"
        )
        for low, high in zip(edges, edges[1:], strict=False)
    ]


def compute_round_edges(low: float, high: float) -> list[float]:
    """Round numbers from at or below `low` to above `high`, about `MOST_BINS` steps apart."""
    wide = (high - low) / MAX_BINS or abs(high) or 1.0
    size = 10.0 ** floor(log10(wide))
    step = next(size * by for by in (1, 2, 2.5, 5, 10) if size * by >= wide * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, max(last, first + 1) + 1)]


def compute_result_statistics(found: QueryResult, spans: ChartAxes) -> ResultStatistics:
    """Two queries: counts by bin, and means by source."""
    final = found.samples.order_by().filter(final=True)
    blank = build_score_bins(spans)
    counts = final.aggregate(
        total=Count("pk"),
        mean=Avg("score"),
        judged=Count("correct"),
        right=Count("pk", filter=Q(correct=True)),
        groups=Count("group", distinct=True),
        length=Avg("chars", filter=~found.build_term_condition("no:text")),
        zero_or_less=Count("pk", filter=found.build_term_condition("score<=0")),
        **{f"bin{at}": Count("pk", filter=found.build_term_condition(one.term)) for at, one in enumerate(blank)},
    )
    inside = [counts.pop(f"bin{at}") for at in range(len(blank))]
    most = max([*inside, 1])
    bins = [
        replace(one, count=count, height=round(100 * count / most, 1)) for one, count in zip(blank, inside, strict=True)
    ]
    if found.scope.step_id is None:  # groups of two steps may have one name
        counts["groups"] = 0
    return ResultStatistics(**counts, bins=bins, sources=compute_source_statistics(final))


def compute_source_statistics(final: QuerySet[Sample]) -> list[dict[str, Any]]:
    """[{name, term, count, mean, width}] in order of size, the eight largest; width in per cent of [0, highest]."""
    found = list(
        final.exclude(data_source="")
        .values("data_source")
        .annotate(count=Count("pk"), mean=Avg("score"))
        .order_by("-count", "data_source")[:8]
    )
    high = max([row["mean"] or 0 for row in found] + [1.0])
    return [
        {
            "name": row["data_source"],
            "term": f"source:{quote_value(row['data_source'])}",
            "count": row["count"],
            "mean": row["mean"],
            "width": round(100 * max(row["mean"] or 0, 0) / high, 1),
        }
        for row in found
    ]
