"""Sends a page with a long text in pieces: the browser shows its start while the server renders the text.

The template has `{{ deferred.marker }}` at the position of the text. So no template copies megabytes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

log = logging.getLogger(__name__)

MIN_STREAMED_CHARS = 200_000
BATCH_SIZE = 30  # fragments that are sent at once: about 200,000 characters
DEFERRED_MARKER = mark_safe("<!--deferred-->")  # texts of a model cannot contain it: their `<` is escaped


@dataclass(frozen=True, slots=True)
class DeferredContent:
    """A text of about `length` characters. `render` may be called once, in another thread."""

    render: Callable[[], Iterator[str]]
    length: int

    @property
    def marker(self) -> SafeString:
        return DEFERRED_MARKER


def render_with_deferred(template: str, context: dict[str, Any], request: HttpRequest) -> str:
    """Renders the template with `context["deferred"]`, if it has one, in place of its marker."""
    deferred = context.get("deferred")
    head, marker, tail = render_to_string(template, context, request).partition(DEFERRED_MARKER)
    return "".join([head, *(deferred.render() if deferred and marker else ()), tail])


def build_page_response(template: str, context: dict[str, Any], request: HttpRequest) -> HttpResponseBase:
    """The rendered page; in pieces if its text is long and the server is asynchronous."""
    deferred = context.get("deferred")
    if not deferred or deferred.length <= MIN_STREAMED_CHARS or not isinstance(request, ASGIRequest):
        return HttpResponse(render_with_deferred(template, context, request))
    head, marker, tail = render_to_string(template, context, request).partition(DEFERRED_MARKER)
    text = render_or_report_failure(deferred, request) if marker else ()
    return StreamingHttpResponse(encode_fragments(chain([head], text, [tail])))


def render_or_report_failure(deferred: DeferredContent, request: HttpRequest) -> Iterator[str]:
    """The status is already sent, so the page itself shows that its text could not be rendered."""
    try:
        yield from deferred.render()
    except Exception:
        log.exception("Rendering the text of %s failed", request.path)
        yield render_to_string("common/broken.html", {}, request)


async def encode_fragments(fragments: Iterator[str]) -> AsyncIterator[bytes]:
    """The first fragment alone, the others in batches."""
    yield next(fragments).encode()
    join_next = sync_to_async(lambda: "".join(islice(fragments, BATCH_SIZE)))
    while batch := await join_next():
        yield batch.encode()
