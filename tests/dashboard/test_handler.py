"""The ASGI handler: each request has one thread, which is used again, but never by two requests at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any
from unittest.mock import patch

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path

from dashboard import handler
from dashboard.streaming import iterate_in_threads

entered, released = threading.Event(), threading.Event()


def in_event_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def name_thread(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(threading.get_ident()))


def wait_long(request: HttpRequest) -> HttpResponse:
    entered.set()
    assert released.wait(10)
    return HttpResponse(str(threading.get_ident()))


def stream_threads(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iterate_in_threads(str(threading.get_ident()).encode() + b" " for _chunk in range(3)))


urlpatterns = [path("name", name_thread), path("wait", wait_long), path("stream", stream_threads)]


class Client:
    """Sends requests to one handler. The client of a request disconnects when the event `disconnected` is set."""

    def __init__(self) -> None:
        self.handler = handler.RequestHandler()

    async def get(self, page: str, *, disconnected: asyncio.Event | None = None) -> str:
        sent: list[dict[str, Any]] = []
        received = iter([{"type": "http.request", "body": b""}])
        done = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if message := next(received, None):
                return message
            await (disconnected or done).wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": f"/{page}", "raw_path": f"/{page}".encode(),
            "query_string": b"", "headers": [(b"host", b"testserver")], "root_path": "", "server": ("testserver", 80),
        }  # fmt: skip
        await self.handler(scope, receive, send)
        return b"".join(message.get("body", b"") for message in sent).decode()


@pytest.fixture(autouse=True)
def _urls(settings: Any) -> Any:
    settings.MIDDLEWARE = []
    for event in (entered, released):
        event.clear()
    with override_settings(ROOT_URLCONF=__name__):
        yield
    released.set()


@in_event_loop
async def test_requests_one_after_the_other_have_one_thread_and_its_connection() -> None:
    client = Client()
    assert len({await client.get("name") for _request in range(5)}) == 1


@in_event_loop
async def test_a_streamed_response_stays_in_its_thread() -> None:
    client = Client()
    name = await client.get("name")
    assert set((await client.get("stream")).split()) == {name}


@in_event_loop
async def test_requests_at_the_same_time_have_threads_of_their_own() -> None:
    client = Client()
    slow = asyncio.create_task(client.get("wait"))
    await asyncio.to_thread(entered.wait, 10)
    quick = await client.get("name")
    released.set()
    assert await slow != quick
    assert len(client.handler.idle) == 2


@in_event_loop
async def test_a_view_whose_client_has_left_does_not_hold_up_the_next_request() -> None:
    client, disconnected = Client(), asyncio.Event()
    slow = asyncio.create_task(client.get("wait", disconnected=disconnected))
    await asyncio.to_thread(entered.wait, 10)
    disconnected.set()
    quick = await asyncio.wait_for(client.get("name"), 5)
    released.set()
    assert await slow == ""
    assert len(client.handler.idle) == 2
    assert await client.get("name") != quick, "the thread of the view that ended last is used again"


@in_event_loop
async def test_only_a_few_idle_threads_are_kept() -> None:
    client = Client()
    threads = [ThreadPoolExecutor(1) for _thread in range(handler.MAX_IDLE_THREADS + 1)]
    for thread in threads:
        client.handler.release(thread)
    assert [thread for thread, _since in client.handler.idle] == threads[1:]
    with pytest.raises(RuntimeError):
        threads[0].submit(int)


@in_event_loop
async def test_a_thread_that_is_idle_for_a_minute_ends() -> None:
    client, threads = Client(), [ThreadPoolExecutor(1) for _thread in range(3)]
    for thread in threads:
        client.handler.release(thread)
    with patch.object(handler, "monotonic", lambda: time.monotonic() + handler.MAX_IDLE_SECONDS):
        await client.get("name")
    assert [thread for thread, _since in client.handler.idle] == threads[2:], "the thread of the request is used again"
    with pytest.raises(RuntimeError):
        threads[0].submit(int)
