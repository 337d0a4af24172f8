"""The table of samples: one page of rows of a query, what each row is marked with, and figures over the whole query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Avg, Count, Max, Min, Q, QuerySet

from rollouts.facets import FACETS
from rollouts.models import Flag, Sample

# Facet, its mark in the table, its colour class, and what the mark says in full.
MARKS = (
    ("trunc?", "TRUNC?", "trunc", "looks cut off; this run does not record why generation ended"),
    ("repetition", "REP", "partial", "ends in repetition"),
    ("language-mix", "LANG", "partial", "uses a script that the prompt does not"),
    ("empty", "EMPTY", "bad", "an empty response"),
    ("duplicate", "DUP", "plain", "the same text as another response of its group"),
    ("no-marker", "FMT", "bad", "no answer marker"),
    ("no-text", "NO TEXT", "plain", "only its tokens were recorded; text needs a tokenizer"),
)

FIRST, MORE = 50, 200
COLUMNS = ("group", "n", "adv", "len", "source", "expected")

# Bins that a reward is read by; a run whose scores leave [-1, 1] gets the step's own histogram instead.
BINS = (
    ("<0", "bad", "score<0", Q(score__lt=0)),
    ("=0", "bad", "score=0", Q(score=0)),
    ("0–.5", "partial", "score>0 score<0.5", Q(score__gt=0, score__lt=0.5)),
    (".5–1", "partial", "score>=0.5 score<1", Q(score__gte=0.5, score__lt=1)),
    ("≥1", "good", "score>=1", Q(score__gte=1)),
)


@dataclass(slots=True)
class Row:
    sample: Sample
    flags: int = 0

    @property
    def group(self) -> str:
        return self.sample.group if len(self.sample.group) <= 6 else self.sample.group[:6]

    @property
    def length(self) -> str:
        """In tokens where recorded, else in characters."""
        return f"{self.sample.chars if self.sample.tokens is None else self.sample.tokens:,}"

    def marks(self) -> list[tuple[str, str, str]]:
        """[(colour class, what it says in full, mark)]"""
        found = [("trunc", "stopped by the length limit", "TRUNC")] if self.sample.truncated else []
        found += [(kind, full, mark) for name, mark, kind, full in MARKS if self.sample.facets & FACETS[name]]
        if not self.sample.final:
            found.append(("plain", "a later sample ends this trajectory", "MID"))
        if self.flags:
            found.append(
                ("flag", f"{self.flags} flag{'s' * (self.flags > 1)}", f"⚑ {self.flags}" if self.flags > 1 else "⚑")
            )
        return found


@dataclass(slots=True)
class Bin:
    name: str
    grade: str
    term: str
    count: int
    height: float

    @property
    def y(self) -> float:
        return 100 - self.height


@dataclass(slots=True)
class Figures:
    """Over all samples of the query. Scores count each trajectory once, by its last sample."""

    total: int = 0
    zero_or_less: int = 0
    mean: float | None = None
    bins: list[Bin] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)


def rows(samples: Iterable[Sample]) -> list[Row]:
    found = list(samples)
    flags = dict(
        Flag.objects.filter(sample__in=[sample.pk for sample in found], withdrawn_at=None)
        .values("sample")
        .annotate(count=Count("pk"))
        .values_list("sample", "count")
    )
    return [Row(sample, flags.get(sample.pk, 0)) for sample in found]


def columns(page: list[Row]) -> list[str]:
    """Those with data; a column that this run does not record is left out, never drawn as empty."""
    samples = [row.sample for row in page]
    there = {
        "group": any(sample.group for sample in samples),
        "n": any(sample.index is not None for sample in samples),
        "adv": any(sample.advantage is not None for sample in samples),
        "len": bool(samples),
        "source": len({sample.data_source for sample in samples}) > 1,
        "expected": any(sample.expected for sample in samples),
    }
    return [name for name in COLUMNS if there[name]]


def figures(samples: QuerySet[Sample]) -> Figures:
    """Two queries: counts by bin, and mean by source."""
    final = samples.order_by().filter(final=True)
    counts = final.aggregate(
        total=Count("pk"),
        mean=Avg("score"),
        zero_or_less=Count("pk", filter=Q(score__lte=0)),
        low=Min("score"),
        high=Max("score"),
        **{f"bin{at}": Count("pk", filter=test) for at, (*_, test) in enumerate(BINS)},
    )
    most = max([counts[f"bin{at}"] for at in range(len(BINS))] + [1])
    bins = [
        Bin(name, grade, term, counts[f"bin{at}"], round(100 * counts[f"bin{at}"] / most, 1))
        for at, (name, grade, term, _) in enumerate(BINS)
    ]
    return Figures(counts["total"], counts["zero_or_less"], counts["mean"], bins, by_source(final))


def by_source(final: QuerySet[Sample]) -> list[dict[str, Any]]:
    """[{name, count, mean, width}] in order of size, the eight largest; width in per cent of [0, highest]."""
    found = list(
        final.exclude(data_source="")
        .values("data_source")
        .annotate(count=Count("pk"), mean=Avg("score"))
        .order_by("-count")[:8]
    )
    high = max([row["mean"] or 0 for row in found] + [1.0])
    return [
        {
            "name": row["data_source"],
            "term": f"source:{quoted(row['data_source'])}",
            "count": row["count"],
            "mean": row["mean"],
            "width": round(100 * max(row["mean"] or 0, 0) / high, 1),
        }
        for row in found
    ]


def quoted(word: str) -> str:
    """A word of the query language, in quotes where it needs them."""
    return word if word.replace("/", "").replace("-", "").replace("_", "").isalnum() else f'"{word}"'
