"""Requests to the API, and their parts and pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from rolloutdeck.cli.common.messages import end_sentence
from rolloutdeck.errors import MissingError, UnavailableError, UsageError
from rolloutdeck.lib import (
    ServerClient,
    ServerResponse,
    ServerUnreachableError,
    encode_json,
)

MAX_REQUEST_BYTES = 4 << 20  # of several rows; the server takes MAX_JSON_BYTES
PAGE_SIZE = 500
UNAVAILABLE_STATUSES = (429, 502, 503, 504)

Row = TypeVar("Row")


def send_request(server: ServerClient, method: str, path: str, body: Any = None, **options: Any) -> ServerResponse:
    """Sends a request, with `body` as JSON if it is given, and returns the successful response.

    Raises UsageError with the server's message if the response is an error; MissingError for 404, UnavailableError if
    the server does not answer at the moment or is busy.
    """
    try:
        if body is None:
            response = server.request(method, path, **options)
        else:
            response = server.send_json(method, path, body, **options)
    except ServerUnreachableError as error:
        raise UnavailableError(f"The server does not answer: {error}.") from error
    if response.is_success:
        return response
    message = end_sentence(response.error_message)
    if response.status in UNAVAILABLE_STATUSES:
        raise UnavailableError(message, response.retry_after)
    raise (MissingError if response.status == 404 else UsageError)(message)


def iterate_pages(server: ServerClient, path: str, query: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the results of all pages. Raises like `send_request`."""
    number = 1
    while True:
        page = send_request(server, "GET", path, query={**(query or {}), "page": number, "page_size": PAGE_SIZE}).json()
        yield from page["results"]
        if not page["next"]:
            return
        number += 1


def split_rows(rows: Iterable[Row], max_rows: int) -> Iterator[list[Row]]:
    """Yields the rows in parts for one request each: of at most `max_rows` rows and `MAX_REQUEST_BYTES` of JSON. A
    single row may be larger."""
    part: list[Row] = []
    size = 0
    for row in rows:
        row_bytes = len(encode_json(row))
        if part and (len(part) >= max_rows or size + row_bytes > MAX_REQUEST_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_bytes
    if part:
        yield part
