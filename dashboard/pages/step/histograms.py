"""Statistics of a query result: counts, a histogram of scores, means by source. Each bar is a term of the query."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any

from django.db.models import Avg, Count, Max, Min, Q, QuerySet

from dashboard.pages.common import grade_score
from rollouts.models import Sample
from rollouts.query import QueryResult, quote_value

MAX_BINS = 10
# The bins of rewards: name, grade, the lower bound as a term, the upper bound as a term.
REWARD_BINS = (
    ("<0", "bad", "", "score<0"),
    ("=0", "bad", "score>=0", "score<=0"),
    ("0–.5", "partial", "score>0", "score<0.5"),
    (".5–1", "partial", "score>=0.5", "score<1"),
    ("=1", "good", "score>=1", ""),
)


@dataclass(frozen=True, slots=True)
class ChartAxes:
    """The ranges of a step's charts, for all queries. Lengths are in tokens if all samples have them, else in
    characters. `limit` is the length in tokens at which samples were truncated."""

    low: float | None
    high: float | None
    longest: int
    in_tokens: bool
    limit: int | None = None
    advantages: bool = False
    staleness: bool = False
    durations: bool = False

    @property
    def key(self) -> str:
        """The name of the length in the query language."""
        return "tokens" if self.in_tokens else "len"

    @property
    def column(self) -> str:
        return "tokens" if self.in_tokens else "chars"


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """A bar. `above` and `below` are its bounds as terms, empty if it has no such bound."""

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
    """Of all samples of the result. Each trajectory counts once, by its last sample."""

    total: int = 0
    zero_or_less: int = 0
    mean: float | None = None
    evaluated: int = 0
    correct_count: int = 0
    groups: int = 0
    length: float | None = None
    bins: list[ScoreBin] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)


def compute_chart_axes(samples: QuerySet[Sample]) -> ChartAxes:
    """The axes of a step, from its samples without a query."""
    values = samples.order_by().aggregate(
        rows=Count("pk"), counted=Count("tokens"), low=Min("score"), high=Max("score"), max_chars=Max("chars"),
        max_tokens=Max("tokens"), limit=Max("tokens", filter=Q(truncated=True)), advantages=Count("advantage"),
        staleness=Max("staleness"), durations=Count("duration"),
    )  # fmt: skip
    in_tokens = values["rows"] > 0 and values["counted"] == values["rows"]
    longest = values["max_tokens"] if in_tokens else values["max_chars"]
    limit = values["limit"] if in_tokens else None
    recorded = values["advantages"] > 0, bool(values["staleness"]), values["durations"] > 0
    return ChartAxes(values["low"], values["high"], longest or 0, in_tokens, limit, *recorded)


def build_score_bins(axes: ChartAxes) -> list[ScoreBin]:
    """`REWARD_BINS` for scores within -1 … 1, else about ten bins between round numbers."""
    if axes.low is None or axes.high is None:
        return []
    if axes.low >= -1 and axes.high <= 1:
        return [ScoreBin(*values) for values in REWARD_BINS]
    return [
        ScoreBin(
            f"{low:g}".replace("e+", "e"), grade_score((low + high) / 2), f"score>={low:.15g}", f"score<{high:.15g}"
        )
        for low, high in pairwise(compute_round_edges(axes.low, axes.high))
    ]


def compute_round_edges(low: float, high: float) -> list[float]:
    """Round numbers from at or below `low` to above `high`, about `MAX_BINS` steps apart."""
    width = (high - low) / MAX_BINS or abs(high) or 1.0
    size = 10.0 ** floor(log10(width))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= width * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step + 1e-9)
    return [round(at * step, 12) for at in range(first, max(last, first + 1) + 1)]


def compute_result_statistics(result: QueryResult, axes: ChartAxes, row_count: int) -> ResultStatistics:
    """Two queries: counts by bin, and means by source; one more to count the groups of several rows of one step.
    `row_count` is 0 for all steps, whose groups are not counted."""
    final = result.samples.order_by().filter(final=True)
    bins = build_score_bins(axes)
    values = final.aggregate(
        total=Count("pk"),
        mean=Avg("score"),
        evaluated=Count("correct"),
        correct_count=Count("pk", filter=Q(correct=True)),
        groups=Count("group", distinct=True),
        length=Avg("chars", filter=~result.build_term_condition("no:text")),
        zero_or_less=Count("pk", filter=result.build_term_condition("score<=0")),
        **{f"bin{at}": Count("pk", filter=result.build_term_condition(bar.term)) for at, bar in enumerate(bins)},
    )
    counts = [values.pop(f"bin{at}") for at in range(len(bins))]
    highest = max([*counts, 1])
    bars = [
        replace(bar, count=count, height=round(100 * count / highest, 1))
        for bar, count in zip(bins, counts, strict=True)
    ]
    if row_count > 1:  # groups of two attempts may have the same name
        values["groups"] = final.values("step", "group").distinct().count()
    elif result.scope.step_id is None:  # so may groups of two steps
        values["groups"] = 0
    return ResultStatistics(**values, bins=bars, sources=compute_source_statistics(final))


def compute_source_statistics(final: QuerySet[Sample]) -> list[dict[str, Any]]:
    """[{name, term, count, mean, width}] of the eight largest sources; width in percent of [0, highest mean]."""
    sources = final.exclude(data_source="").values("data_source").annotate(count=Count("pk"), mean=Avg("score"))
    rows = list(sources.order_by("-count", "data_source")[:8])
    high = max([row["mean"] or 0 for row in rows] + [1.0])
    return [
        {
            "name": row["data_source"],
            "term": f"source={quote_value(row['data_source'])}",
            "count": row["count"],
            "mean": row["mean"],
            "width": round(100 * max(row["mean"] or 0, 0) / high, 1),
        }
        for row in rows
    ]
