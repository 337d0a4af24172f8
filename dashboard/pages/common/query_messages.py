"""What pages that take a query share: the error message of a bad query, the words to mark, the start of a page."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.pages.common.url_state import whole
from rollouts.errors import BadInput
from rollouts.query.parser import BadQuery, Query, Text

MOST_START = 10**8


def said(q: str, problem: BadInput) -> SafeString | str:
    """The sentence, and the query with its bad part underlined."""
    if not isinstance(problem, BadQuery):
        return str(problem)
    start, end = problem.span
    if q[start:end].strip():
        return format_html("{} <code>{}<u>{}</u>{}</code>", str(problem), q[:start], q[start:end], q[end:])
    return format_html("{} <code>{}<u>&nbsp;</u></code>", str(problem), q)


def words(query: Query) -> list[str]:
    """What to mark in the text."""
    return [leaf.text for leaf in query.leaves() if isinstance(leaf, Text)]


def start_of(value: str) -> int:
    """`start=` of a further page of rows; anything odd is the first."""
    return whole(value, most=MOST_START) or 0
