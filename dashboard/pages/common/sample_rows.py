"""The table of samples: one page of rows of a query, and what each row is marked with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rollouts.models import Flag, Sample
from rollouts.review import load_viewed_marks
from rollouts.samples import TEXT_PROPERTY_BITS

# Facet, its mark in the table, its colour class, and what the mark says in full.
MARKS = (
    ("trunc?", N_("TRUNC?"), "trunc", N_("looks cut off; this run does not record why generation ended")),
    ("repetition", N_("REP"), "partial", N_("ends in repetition")),
    ("language-mix", N_("LANG"), "partial", N_("uses a writing system that the prompt does not use")),
    ("empty", N_("EMPTY"), "bad", N_("empty response")),
    ("duplicate", N_("DUP"), "plain", N_("same text as another response in the group")),
    ("no-marker", N_("NO ANSWER"), "bad", N_("no answer marker")),
    ("filtered", N_("FILTERED"), "plain", N_("dropped by the trainer's filter, not trained on")),
    ("no-text", N_("NO TEXT"), "plain", N_("only tokens were recorded; upload the tokenizer to show text")),
)

FIRST_PAGE_ROWS, NEXT_PAGE_ROWS = 50, 200
MAX_GROUP_NAME_CHARS = 6
GENERATED_NAME_PATTERN = re.compile(
    r"[0-9A-Za-z]{16,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)  # hashes, UUIDs
SAMPLE_COLUMNS = ("group", "n", "adv", "len", "source", "expected")


@dataclass(slots=True)
class SampleRow:
    sample: Sample
    flags: int = 0
    look: str = ""  # in a word, by the person who asks
    fine: bool = False

    @property
    def group(self) -> str:
        """As much of its name as a narrow column holds: the end, in which names that somebody gave differ, or the
        beginning of one that was drawn."""
        name = self.sample.group
        if len(name) <= MAX_GROUP_NAME_CHARS:
            return name
        return (
            name[:MAX_GROUP_NAME_CHARS]
            if GENERATED_NAME_PATTERN.fullmatch(name)
            else f"…{name[1 - MAX_GROUP_NAME_CHARS :]}"
        )

    @property
    def length(self) -> str:
        """In tokens where recorded, else in characters."""
        return f"{self.sample.chars if self.sample.tokens is None else self.sample.tokens:,}"

    def marks(self) -> list[tuple[str, str, str]]:
        """[(colour class, what it says in full, mark)]"""
        found = [("trunc", _("stopped by the length limit"), _("TRUNC"))] if self.sample.truncated else []
        found += [
            (kind, _(full), _(mark))
            for name, mark, kind, full in MARKS
            if self.sample.facets & TEXT_PROPERTY_BITS[name]
        ]
        if not self.sample.final:
            found.append(("plain", _("not the last sample of its trajectory"), _("MID")))
        if self.flags:
            full = ngettext("{count} flag", "{count} flags", self.flags).format(count=self.flags)
            found.append(("flag", full, f"⚑ {self.flags}" if self.flags > 1 else "⚑"))
        return found


def build_sample_rows(samples: Iterable[Sample], reader: int | None = None) -> list[SampleRow]:
    """`reader` is the id of who looks at the list."""
    found = list(samples)
    flags = dict(
        Flag.objects.filter(sample__in=[sample.pk for sample in found], withdrawn_at=None)
        .values("sample")
        .annotate(count=Count("pk"))
        .values_list("sample", "count")
    )
    looks = {} if reader is None else load_viewed_marks(found, reader)
    return [
        SampleRow(sample, flags.get(sample.pk, 0), format_viewed_state(fine := looks.get(sample.pk)), bool(fine))
        for sample in found
    ]


def format_viewed_state(fine: bool | None) -> str:
    """`fine` is None for a sample that the person has not looked at."""
    return "" if fine is None else _("OK") if fine else _("viewed")


def find_filled_columns(page: list[SampleRow]) -> list[str]:
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
    return [name for name in SAMPLE_COLUMNS if there[name]]
