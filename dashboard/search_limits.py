"""Tells searches whose request they answer, and whether the client has left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AnonymousUser, User

from rollouts.query import ScanRequest, get_scan_request, start_scan_request

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

GUEST = "guest"  # all people without an account together


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """An ASGI application around `app`: the searches of a request end when its client disconnects."""

    app: Any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        search = ScanRequest(GUEST)

        async def watch_disconnect() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                search.cancelled.set()
            return message

        with start_scan_request(search):
            await self.app(scope, watch_disconnect, send)


def set_search_person(user: User | AnonymousUser) -> None:
    """Counts the searches of this request for `user`."""
    get_scan_request().person = GUEST if user.pk is None else str(user.pk)
