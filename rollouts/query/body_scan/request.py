"""The request that a search belongs to: its person, its deadline, and whether its client still waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Event

from django.conf import settings
from django.utils.translation import gettext as _

from rollouts.errors import QueryLimitError, SearchCancelledError


@dataclass(slots=True, eq=False)
class ScanRequest:
    """All searches of one request. They share `max_seconds`, counted without the wait for other searches. `person` is
    None outside of requests, where no limit per person applies."""

    person: str | None = None
    max_seconds: float | None = None
    used: float = 0.0
    cancelled: Event = field(default_factory=Event)

    @property
    def limit(self) -> float:
        return float(settings.MAX_QUERY_SECONDS) if self.max_seconds is None else self.max_seconds

    @property
    def remaining(self) -> float:
        return self.limit - self.used

    def check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise SearchCancelledError(_("The search was cancelled."))

    def build_time_error(self) -> QueryLimitError:
        message = _(
            "The search ran for {seconds} s, which is the limit, and was stopped. Search fewer steps, for example "
            "step:100..120, or use a plain text or a shorter regular expression: repetitions such as {{1,50}} are slow."
        )
        return QueryLimitError(message.format(seconds=f"{self.used:.1f}"), "q")


current: ContextVar[ScanRequest | None] = ContextVar("scan_request", default=None)


def get_scan_request() -> ScanRequest:
    """Returns the request that this thread answers. Without one, as in a worker, each search has its own limit."""
    return current.get() or ScanRequest(max_seconds=float(settings.MAX_WORKER_QUERY_SECONDS))


@contextmanager
def start_scan_request(request: ScanRequest) -> Iterator[ScanRequest]:
    """Within it, searches of this thread, and of threads that copy its context, belong to `request`."""
    token = current.set(request)
    try:
        yield request
    finally:
        current.reset(token)
