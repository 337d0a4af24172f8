"""Completes the term at a character of a query about one run."""

from __future__ import annotations

import re
from typing import Any, Final

from rollouts.models import Run
from rollouts.query.completion.context import (
    MAX_CHOICES,
    CompletionChoice,
    CompletionContext,
    QueryCompletion,
    build_context,
)
from rollouts.query.completion.names import list_names
from rollouts.query.completion.values import list_named_values, list_values
from rollouts.query.grammar import ASCII_SIGNS
from rollouts.query.term_editing import find_term_span

COMPARED: Final = re.compile(r'(extra\."(?:\\.|[^"\\])*"|[^\W\d][\w./\-]*)([<>=!≤≥≠]+)(.*)', re.DOTALL)
NAMED: Final = re.compile(r"(label\.[\w.\-]+|label-source|[A-Za-z_][\w.]*):(.*)", re.DOTALL)


def complete_query(run: Run, q: str, at: int | None = None, **where: Any) -> QueryCompletion:
    """Returns the choices at character `at` of `q`, at its end by default. `where` is as for `find_samples`. Raises
    InvalidInputError."""
    at = len(q) if at is None else max(0, min(at, len(q)))
    start, end = find_term_span(q, at)
    typed = q[start:at].translate(ASCII_SIGNS)
    context = build_context(run, f"{q[:start].rstrip().removesuffix('-')} {q[end:]}", where)
    return QueryCompletion(start, end, tuple(list_choices(context, typed)[:MAX_CHOICES]))


def list_choices(context: CompletionContext, typed: str) -> list[CompletionChoice]:
    if matched := COMPARED.fullmatch(typed):
        return list_values(context, *matched.groups())
    if matched := NAMED.fullmatch(typed):
        return list_named_values(context, *matched.groups())
    if typed[:1] in ('"', "“", "”", "＂", "「", "『", "/"):
        return []
    return list_names(context, typed)
