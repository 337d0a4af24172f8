"""The request that a search belongs to: its person, its deadline, and whether its client still waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Condition, Event
from time import monotonic

from django.conf import settings
from django.utils.translation import gettext as _

from rollouts.errors import QueryLimitError, SearchCancelledError, TooManySearchesError


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
running: dict[str, int] = {}  # searches by person; "" counts all
changed = Condition()


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


@contextmanager
def take_scan_slot(request: ScanRequest) -> Iterator[None]:
    """Waits until the person and the server may start another scan. Raises TooManySearchesError if it takes longer than
    `settings.MAX_SCAN_WAIT` seconds."""
    limits = {"": settings.MAX_SCANS}
    if request.person is not None:
        limits[f"person {request.person}"] = settings.MAX_SCANS_PER_PERSON
    wait_for(lambda: all(running.get(name, 0) < limit for name, limit in limits.items()), request, limits)
    try:
        yield
    finally:
        with changed:
            for name in limits:
                running[name] -= 1
                if not running[name]:
                    del running[name]
            changed.notify_all()


def wait_for(is_free: Callable[[], bool], request: ScanRequest, names: dict[str, int]) -> None:
    wait = settings.MAX_SCAN_WAIT if request.person is not None else settings.MAX_WORKER_QUERY_SECONDS
    deadline = monotonic() + wait
    with changed:
        while not is_free():
            request.check_cancelled()
            if monotonic() >= deadline:
                message = _("Your other searches still run. Wait a few seconds, then try again.")
                raise TooManySearchesError(message)
            changed.wait(0.1)
        for name in names:
            running[name] = running.get(name, 0) + 1
