"""What a page draws late: where its template says `{{ late.mark }}`, after what stands around that.

A browser gets the page up to there at once and takes it up while the rest is drawn; and the megabytes of a long text
are neither copied by each template that holds another nor encoded together with the page's own signs. What is late may
itself hold something late: the page of a long sample is its frame, then what is known of the sample, then the text.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

log = logging.getLogger(__name__)
MIN_STREAMED_CHARS = (
    200_000  # characters; a longer text is sent behind its page, and laid out by the browser block by block
)
CHUNK = 200_000  # characters that are sent at once; the browser reads them while the next are drawn


@dataclass(frozen=True, slots=True)
class DeferredContent:
    """`pieces` draws it, with a text of about `length` characters; it may be called once, by another thread."""

    pieces: Callable[[], Iterator[str]]
    length: int

    @property
    def mark(self) -> SafeString:
        return DEFERRED_MARKER


DEFERRED_MARKER = mark_safe("<!--late-->")  # no text of a model holds it: its `<` is escaped


def stream_with_deferred(template: str, context: dict[str, Any], request: HttpRequest) -> Iterator[str]:
    """The template drawn with `context`, whose `late` is put in its place."""
    page, late = render_to_string(template, context, request), context.get("late")
    before, mark, behind = page.partition(DEFERRED_MARKER)
    yield before
    if mark and isinstance(late, DeferredContent):
        yield from late.pieces()
    yield behind


def render_with_deferred(template: str, context: dict[str, Any], request: HttpRequest) -> str:
    return "".join(stream_with_deferred(template, context, request))


def build_page_response(template: str, context: dict[str, Any], request: HttpRequest) -> HttpResponseBase:
    """The drawn page, in pieces where it waits for a long text and the server can send it so."""
    late = context.get("late")
    if not isinstance(late, DeferredContent) or not should_stream(request, late.length):
        return HttpResponse(render_with_deferred(template, context, request))
    told = stream_with_deferred(
        template,
        context | {"late": DeferredContent(lambda: stream_or_report_failure(late, request), late.length)},
        request,
    )
    first = next(told)
    return StreamingHttpResponse(encode_pieces(first, join_pieces(told)))


def should_stream(request: HttpRequest, length: int) -> bool:
    """Whether a page with a text of so many characters is sent while it is drawn."""
    return length > MIN_STREAMED_CHARS and isinstance(request, ASGIRequest)


def stream_or_report_failure(late: DeferredContent, request: HttpRequest) -> Iterator[str]:
    """Once a page's beginning is sent no status can say that the rest failed, so the page itself does."""
    try:
        yield from late.pieces()
    except Exception:
        log.exception("Drawing the rest of %s failed", request.path)
        yield render_to_string("common/broken.html", {}, request)


def join_pieces(pieces: Iterator[str]) -> Iterator[str]:
    """The same text in fewer pieces, the first as it comes: that is what stands before a text."""
    pieces = filter(None, pieces)
    yield next(pieces, "")
    held: list[str] = []
    length = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length >= CHUNK:
            yield "".join(held)
            held, length = [], 0
    yield "".join(held)


async def encode_pieces(first: str, rest: Iterator[str]) -> AsyncIterator[bytes]:
    yield first.encode()
    following = sync_to_async(lambda: next(rest, ""))
    while piece := await following():
        yield piece.encode()
