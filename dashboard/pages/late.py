"""The one long text of a page: drawn where its template says `{{ late.mark }}`, after the rest of the page.

A browser gets the page up to there at once and loads scripts and styles while the text is drawn; and megabytes are
neither copied by each template that holds another nor encoded together with the page's own signs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

LONG = 200_000  # characters; a longer text is sent behind its page, and laid out by the browser block by block
CHUNK = 200_000  # characters that are sent at once; the browser reads them while the next are drawn


@dataclass(frozen=True, slots=True)
class Late:
    """`pieces` draws the text, of about `length` characters; it may be called once, by another thread."""

    pieces: Callable[[], Iterator[str]]
    length: int

    @property
    def mark(self) -> SafeString:
        return MARK


MARK = mark_safe("<!--late-->")  # no text of a model holds it: its `<` is escaped


def pieces(template: str, context: dict[str, Any], request: HttpRequest) -> Iterator[str]:
    """The template drawn with `context`, whose `late` is put in its place."""
    page, late = render_to_string(template, context, request), context.get("late")
    before, mark, behind = page.partition(MARK)
    yield before
    if mark and isinstance(late, Late):
        yield from late.pieces()
    yield behind


def drawn(template: str, context: dict[str, Any], request: HttpRequest) -> str:
    return "".join(pieces(template, context, request))


def answer(template: str, context: dict[str, Any], request: HttpRequest) -> HttpResponseBase:
    """The drawn page, in pieces where it waits for a long text and the server can send it so."""
    late, told = context.get("late"), pieces(template, context, request)
    if not isinstance(late, Late) or late.length <= LONG or not isinstance(request, ASGIRequest):
        return HttpResponse("".join(told))
    first = next(told)
    return StreamingHttpResponse(sent(first, gathered(told)))


def gathered(pieces: Iterator[str]) -> Iterator[str]:
    """The same text in fewer pieces."""
    held: list[str] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= CHUNK:
            yield "".join(held)
            held, length = [], 0
    yield "".join(held)


async def sent(first: str, rest: Iterator[str]) -> AsyncIterator[bytes]:
    yield first.encode()
    following = sync_to_async(lambda: next(rest, ""))
    while piece := await following():
        yield piece.encode()
