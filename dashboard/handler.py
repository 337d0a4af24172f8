"""Django's ASGI handler with less work per request: one thread runs all of a request, and threads are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Final

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MAX_IDLE_THREADS: Final = 12  # each of them keeps a database connection open
MAX_IDLE_SECONDS: Final = 60.0


class RequestHandler(ASGIHandler):
    """Runs the middleware and the view of a request in one thread, without a change to the event loop between them.

    Django's own handler changes between the event loop and a thread at each middleware, and it starts a thread and
    opens a database connection for each request. Here all views and middleware are synchronous, and a thread keeps its
    connection for the next request.
    """

    def __init__(self) -> None:
        self.idle: deque[tuple[ThreadPoolExecutor, float]] = deque()  # (thread, idle since), the longest idle first
        super().__init__()

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response)(request)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        thread = self.idle.pop()[0] if self.idle else ThreadPoolExecutor(1, "request")
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self.handle(scope, receive, send)
        finally:
            self.release(thread)

    def release(self, thread: ThreadPoolExecutor) -> None:
        """Keeps the thread for another request, and ends those that are too many or that no request has needed for a
        minute. They are idle: `handle` waits for a view whose client left."""
        now = monotonic()
        self.idle.append((thread, now))
        while len(self.idle) > MAX_IDLE_THREADS or self.idle[0][1] < now - MAX_IDLE_SECONDS:
            ended, _since = self.idle.popleft()
            ended.submit(connections.close_all)
            ended.shutdown(wait=False)
