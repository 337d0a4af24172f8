"""One address answers a whole page, or one panel of it to the element that asks (`HX-Target`), or 304."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.contrib.messages import get_messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotModified
from django.utils.cache import patch_vary_headers
from django.utils.translation import get_language

from dashboard import assets
from dashboard.pages.common import streaming

BuildContext = Callable[[str], dict[str, Any]]
Answer = TypeVar("Answer", bound=HttpResponseBase)


def get_requested_panel(request: HttpRequest) -> str:
    """The id of the element that asks for its own content; empty for a whole page."""
    wanted = request.headers.get("HX-Request") == "true" and not request.headers.get("HX-History-Restore-Request")
    return request.headers.get("HX-Target", "") if wanted else ""


def render_page_or_panel(
    request: HttpRequest, template: str, panels: Mapping[str, str], build_context: BuildContext, *state: object
) -> HttpResponseBase:
    """Renders `template`, or `panels[target]` for the panel that asks; what follows a `-` in its id is its own affair.

    `build_context` gets the panel's id, empty for a whole page. Its context may name another `template`, and `headers`
    for htmx.

    `state` is all that the answer depends on besides address and person. While it stays the same, a page that asks
    again gets 304 and `build_context` is not called. The answer is not cached without state, with a message to show
    once, or if its context has `unread`.
    """
    panel = get_requested_panel(request)
    told = not panel and len(get_messages(request)) > 0
    etag = compute_etag(request, panel, state) if state and not told else ""
    if etag and request.headers.get("If-None-Match", "") == etag:
        return set_cache_headers(HttpResponseNotModified(), etag)
    shown = build_context(panel)
    headers = shown.pop("headers", {})
    wanted = shown.pop("template", panels.get(panel.partition("-")[0], template))
    response = (
        HttpResponse(streaming.render_with_deferred(wanted, shown, request))
        if panel
        else streaming.build_page_response(wanted, shown, request)
    )
    for name, value in headers.items():
        response[name] = value
    return set_cache_headers(response, "" if "unread" in shown else etag)


def compute_etag(request: HttpRequest, panel: str, state: tuple[object, ...]) -> str:
    chosen = [request.COOKIES.get(name, "") for name in ("theme", "keys")]
    parts = (assets.get_release_hash(), get_language(), request.user.pk, chosen, request.get_full_path(), panel, *state)
    return f'W/"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}"'


def set_cache_headers(response: Answer, etag: str) -> Answer:
    response["Cache-Control"] = "private, no-cache"
    if etag:
        response["ETag"] = etag
    patch_vary_headers(response, ["HX-Request", "HX-Target", "Cookie"])
    return response
