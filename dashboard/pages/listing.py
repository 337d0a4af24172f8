"""The table of samples: one page of rows of a query, and what each row is marked with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count

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
