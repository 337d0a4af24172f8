"""Counts the responses of the web process and measures their time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from dashboard.middleware import STATUS_CLIENT_LEFT
from dashboard.origin_check import HEALTH_PATHS, METRICS_PATH, remove_url_prefix
from dashboard.uploads import is_upload_request
from rollouts.telemetry import RESPONSE_SECONDS, RESPONSES

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """The ASGI application around all others."""

    app: Any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = STATUS_CLIENT_LEFT, perf_counter()

        async def note_status(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            kind = find_kind(scope)
            RESPONSES.labels(kind, status).inc()
            RESPONSE_SECONDS.labels(kind).observe(perf_counter() - started)


def find_kind(scope: Scope) -> str:
    path = remove_url_prefix(scope["path"])
    if is_upload_request(scope, path):
        return "upload"
    if path.startswith(("/api/", "/static/")):
        return path.split("/")[1]
    return "probe" if path in (*HEALTH_PATHS, METRICS_PATH) else "page"
