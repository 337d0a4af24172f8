"""Completes a query about the samples of several runs: the choices of the newest runs, merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from django.utils.translation import gettext as _

from rollouts.models import Run
from rollouts.query.completion.complete import complete_query
from rollouts.query.completion.context import FIELD_DESCRIPTIONS, MAX_CHOICES, CompletionChoice, QueryCompletion

MAX_RUNS: Final = 6
MAX_SECONDS: Final = 0.4  # after it no further run is asked, since the user types


def complete_query_of_runs(runs: Iterable[Run], q: str, at: int | None = None, **where: Any) -> QueryCompletion:
    """Returns the choices of the first MAX_RUNS runs, those of the first run first. Counts are summed; a number that
    these runs do not share has no range. Raises InvalidInputError."""
    merged: dict[str, CompletionChoice] = {}
    start = end = len(q)
    started = monotonic()
    for count, run in enumerate(runs, start=1):
        completion = complete_query(run, q, at, **where)
        start, end = completion.start, completion.end
        for choice in completion.choices:
            known = merged.get(choice.text)
            merged[choice.text] = merge_choices(known, choice) if known else choice
        if count == MAX_RUNS or monotonic() - started > MAX_SECONDS:
            break
    return QueryCompletion(start, end, tuple(merged.values())[:MAX_CHOICES])


def merge_choices(first: CompletionChoice, other: CompletionChoice) -> CompletionChoice:
    counts = (first.count, other.count)
    total = None if counts[0] is None or counts[1] is None else counts[0] + counts[1]
    detail = first.detail if first.detail == other.detail else describe_without_range(first)
    return replace(first, count=total, detail=detail)


def describe_without_range(choice: CompletionChoice) -> str:
    if choice.kind not in ("number", "key"):
        return choice.detail
    about = FIELD_DESCRIPTIONS.get(choice.text)  # none for a re-score, whose name may be a key that another run logged
    return _(about) if about else _("logged value")
