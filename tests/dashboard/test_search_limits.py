"""The response to a search that a limit ended, and the end of a search whose client disconnects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.test import RequestFactory

from dashboard.api.exceptions import handle_api_exception
from dashboard.search_limits import SearchLimits
from rollouts.errors import QueryLimitError, TooManySearchesError
from rollouts.query import ScanRequest, get_scan_request


@pytest.mark.parametrize(
    ("error", "status", "retry"), [(QueryLimitError("slow", "q"), 422, None), (TooManySearchesError("busy"), 429, "5")]
)
def test_the_api_names_the_limit(error: Exception, status: int, retry: str | None) -> None:
    response = handle_api_exception(error, {"request": RequestFactory().get("/")})
    assert response is not None
    assert (response.status_code, response.headers.get("Retry-After")) == (status, retry)
    assert response.data["error"]["message"] == str(error)


def test_searches_are_cancelled_when_the_client_disconnects() -> None:
    seen: list[ScanRequest] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(get_scan_request())
        assert not seen[0].cancelled.is_set()
        await receive()

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None: ...

    asyncio.run(SearchLimits(app)({"type": "http"}, receive, send))
    assert seen[0].cancelled.is_set()
