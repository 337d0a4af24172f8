"""Requests that break off and content that never appears miss the budgets of the attacks."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scripts.attack.load import Measurements
from scripts.attack.sockets import MAX_CONTENT_SECONDS, Page

DELAYS = dict.fromkeys(("DELAY", "JITTER", "JITTER_PER_LISTENER", "MAX_JITTER", "PAUSE", "MAX_PAUSE"), 0.0)


def test_a_request_that_breaks_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*args: Any, **options: Any) -> None:
        raise http.client.IncompleteRead(b"")

    monkeypatch.setattr(http.client.HTTPConnection, "request", break_off)
    measured = Measurements()
    assert measured.request("page", 1, "GET", "/") == b""
    assert measured.errors == ["page: IncompleteRead(0 bytes read)"] and len(measured.seconds["page"]) == 1


def test_without_requests_each_percentile_is_infinite() -> None:
    assert Measurements().compute_percentile(["page"], 0.95) == math.inf


class Unreachable:
    """A server that answers nothing."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    async def fetch(self, path: str, headers: dict[str, str]) -> str:
        raise RuntimeError(path)


def test_content_that_never_appears_takes_infinite_time() -> None:
    fetcher: Any = Unreachable()
    page = Page(fetcher, [("/charts.json", "")], DELAYS, True, random.Random(1))

    async def notify() -> AsyncIterator[str]:
        yield json.dumps({"step": 1})

    async def watch() -> None:
        socket: Any = notify()
        await page.listen(socket)
        assert page.handling
        await asyncio.wait([page.handling])

    asyncio.run(watch())
    assert fetcher.errors == ["content: RuntimeError('/charts.json')"]
    page.give_up_waiting()
    assert page.content_seconds == [], "it is not late yet"
    page.waiting = [at - 2 * MAX_CONTENT_SECONDS for at in page.waiting]
    page.give_up_waiting()
    assert page.content_seconds == [math.inf]
