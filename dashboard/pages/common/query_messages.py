"""What pages that take a query share: the error message of a bad query, the words to mark, the start of a page."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard.pages.common.url_state import parse_integer_param
from rollouts.errors import InvalidInputError
from rollouts.query import InvalidQueryError, Query, TextTerm

MAX_ROW_OFFSET = 10**8


def render_query_error(q: str, problem: InvalidInputError) -> SafeString | str:
    """The sentence, and the query with its bad part underlined."""
    if not isinstance(problem, InvalidQueryError):
        return str(problem)
    start, end = problem.span
    if q[start:end].strip():
        return format_html("{} <code>{}<u>{}</u>{}</code>", str(problem), q[:start], q[start:end], q[end:])
    return format_html("{} <code>{}<u>&nbsp;</u></code>", str(problem), q)


def find_query_words(query: Query) -> list[str]:
    """What to mark in the text."""
    return [leaf.text for leaf in query.leaves() if isinstance(leaf, TextTerm)]


def parse_row_offset(value: str) -> int:
    """`start=` of a further page of rows; anything odd is the first."""
    return parse_integer_param(value, most=MAX_ROW_OFFSET) or 0
