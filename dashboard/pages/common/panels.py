"""One URL answers with the page, with one panel for the element that requests it (`HX-Target`), with the panels of a
live update (`X-Panels`), or with 304.

A page with a long text is sent in pieces: the browser shows its start while the server renders the text. The template
has `{{ deferred.marker }}` at the position of the text, so no template copies megabytes.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.messages import get_messages
from django.core.handlers.asgi import ASGIRequest
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotModified,
    JsonResponse,
    StreamingHttpResponse,
)
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language

from dashboard import assets
from dashboard.pages.common.url_state import parse_step_number

log = logging.getLogger(__name__)

BuildContext = Callable[[str], dict[str, Any]]
Response = TypeVar("Response", bound=HttpResponseBase)

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


def get_requested_panel(request: HttpRequest) -> str:
    """The id of the element that requests its content; empty for the page."""
    is_panel = request.headers.get("HX-Request") == "true" and not request.headers.get("HX-History-Restore-Request")
    return request.headers.get("HX-Target", "") if is_panel else ""


def get_requested_panels(request: HttpRequest) -> list[str]:
    """The ids of the panels that a live update requests at once; empty for the page and for one panel."""
    return list(dict.fromkeys(request.headers.get("X-Panels", "").split())) if get_requested_panel(request) else []


def get_shown_step(request: HttpRequest) -> int | None:
    """The step that a page of the latest step shows: its panels stay there until the user asks for a newer step."""
    return parse_step_number(request.headers.get("X-Shown-Step", "")) if get_requested_panel(request) else None


def render_page_or_panel(
    request: HttpRequest, template: str, panels: Mapping[str, str], build_context: BuildContext, *state: object
) -> HttpResponseBase:
    """Renders `template`, or the template of the requested panel. Ids like `more-50` use the panel `more`.

    `build_context` gets the id of the panel, empty for the page. Its context may contain another `template`, and
    `headers` for htmx.

    The response depends on the URL, the user and `state`. While they are the same, a page that requests it again gets
    304, and `build_context` is not called. The response is not cached without state, with messages that are shown
    once, and if the context contains `unread`.

    For several panels the response is JSON: {id: HTML}. It lacks those whose context has `headers`: the page requests
    them one by one.
    """
    panel, together = get_requested_panel(request), get_requested_panels(request)
    has_messages = not panel and len(get_messages(request)) > 0
    etag = compute_etag(request, " ".join(together) or panel, state) if state and not has_messages else ""
    if etag and request.headers.get("If-None-Match", "") == etag:
        return set_cache_headers(HttpResponseNotModified(), etag)
    if together:
        contexts = {name: build_context(name) for name in together if name in panels}
        response, is_unread = render_together(contexts, panels, request), "unread" in chain(*contexts.values())
        return set_cache_headers(response, "" if is_unread else etag)
    context = build_context(panel)
    headers = context.pop("headers", {})
    name = context.pop("template", panels.get(panel.partition("-")[0], template))
    page_or_panel = (
        HttpResponse(render_with_deferred(name, context, request))
        if panel
        else build_page_response(name, context, request)
    )
    for header, value in headers.items():
        page_or_panel[header] = value
    return set_cache_headers(page_or_panel, "" if "unread" in context else etag)


def render_together(
    contexts: Mapping[str, dict[str, Any]], panels: Mapping[str, str], request: HttpRequest
) -> JsonResponse:
    """`contexts` by the id of the panel."""
    plain = {name: context for name, context in contexts.items() if "headers" not in context}
    names = {name: context.pop("template", panels[name]) for name, context in plain.items()}
    return JsonResponse({name: render_with_deferred(names[name], plain[name], request) for name in plain})


def compute_etag(request: HttpRequest, panel: str, state: tuple[object, ...]) -> str:
    cookies = [request.COOKIES.get(name, "") for name in ("theme", "keys")]
    if "CSRF_COOKIE" not in request.META:  # the first page of a browser
        get_token(request)
    cookies.append(request.META["CSRF_COOKIE"])  # a page has a token made from it, which the next sign-in ends
    user, path = request.user.pk, request.get_full_path()
    parts = (assets.get_release_hash(), get_language(), user, cookies, path, panel, get_shown_step(request), *state)
    return f'W/"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"'


def set_cache_headers(response: Response, etag: str) -> Response:
    response["Cache-Control"] = "private, no-cache"
    if etag:
        response["ETag"] = etag
    patch_vary_headers(response, ["HX-Request", "HX-Target", "X-Panels", "X-Shown-Step", "Cookie"])
    return response


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
