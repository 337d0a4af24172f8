"""Samples without a result come from the server in pages, results go to it in batches, both in threads of their own."""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from rolloutdeck.cli.common import call_with_retries, send_request
from rolloutdeck.lib import ServerClient, ServerResponse

PAGE_SAMPLES = 100
PAGES_AHEAD = 2
BATCH_RESULTS = 200
BATCH_SECONDS = 2.0
MAX_BATCHES = 4  # that wait for the server
MAX_TRIES = 8  # of a request that the server does not answer at the moment
MAX_PAUSE_SECONDS = 15.0  # so a restart may take a minute

JsonObject = dict[str, Any]


def send_with_retries(server: ServerClient, method: str, path: str, body: Any = None, **options: Any) -> ServerResponse:
    """Sends a request as `send_request` does, and waits for a server that is busy or restarted."""
    send = partial(send_request, server, method, path, body, **options)
    return call_with_retries(send, MAX_TRIES, 1.0, MAX_PAUSE_SECONDS)


def build_query(args: argparse.Namespace) -> dict[str, str]:
    """Returns the parameters of the samples."""
    names = ("split", "step", "step_kind", "attempt", "q")
    return {name: value for name in names if (value := getattr(args, name))}


def count_samples(server: ServerClient, run: str, query: Mapping[str, str]) -> int:
    """Returns the number of samples of the query. Raises UsageError for a query that cannot be parsed."""
    response = send_request(server, "GET", "samples/", query={**query, "run": run, "page_size": 1})
    return int(response.json()["count"])


class PendingSampleReader:
    """Iterates over the samples of the query that have no result. `done` and `failed` have one already."""

    def __init__(self, server: ServerClient, path: str, query: Mapping[str, str], *, retry: bool) -> None:
        self.server, self.path, self.retry = server, path, retry
        self.query = dict(query)
        self.done = self.failed = 0
        self._pages: queue.Queue[list[JsonObject] | Exception | None] = queue.Queue(PAGES_AHEAD)
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[JsonObject]:
        threading.Thread(target=self._load_pages, daemon=True).start()
        while (page := self._pages.get()) is not None:
            if isinstance(page, Exception):
                raise page
            yield from page

    def stop(self) -> None:
        self._stopped.set()

    def _load_pages(self) -> None:
        cursor: str | None = ""
        try:
            while cursor is not None and not self._stopped.is_set():
                query = {**self.query, "limit": PAGE_SAMPLES, "cursor": cursor or None}
                query |= {"retry": "true"} if self.retry else {}
                page = send_with_retries(self.server, "GET", f"{self.path}pending/", query=query, timeout=120.0).json()
                self.done += page["done"]
                self.failed += page["failed"]
                cursor = page["cursor"]
                self._put(page["samples"])
            self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, page: list[JsonObject] | Exception | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._pages.put(page, timeout=0.5)
            except queue.Full:
                continue


class ResultUploader:
    """Stores results in batches. It stores what remains when the context ends, also after Ctrl-C."""

    def __init__(self, server: ServerClient, path: str) -> None:
        self.server, self.path = server, path
        self.stored = 0
        self._batch: list[JsonObject] = []
        self._since = time.monotonic()
        self._batches: queue.Queue[list[JsonObject] | None] = queue.Queue(MAX_BATCHES)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._send_batches, daemon=True)

    def __enter__(self) -> ResultUploader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()
        self._batches.put(None)
        self._thread.join()
        if self._error and kind is None:
            raise self._error

    def add(self, result: JsonObject) -> None:
        """Raises UsageError if the server refused an earlier batch."""
        self._batch.append(result)
        if len(self._batch) >= BATCH_RESULTS or time.monotonic() - self._since > BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._error:
            raise self._error
        if self._batch:
            self._batches.put(self._batch)
        self._batch, self._since = [], time.monotonic()

    def _send_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            if self._error is None:
                try:
                    self.stored += self.store(batch)
                except Exception as error:
                    self._error = error

    def store(self, batch: list[JsonObject]) -> int:
        """Returns how many were stored. Raises UsageError."""
        response = send_with_retries(self.server, "POST", f"{self.path}results/", {"results": batch})
        return int(response.json()["stored"])
