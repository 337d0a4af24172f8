"""Counts events, such as sign-in attempts, over all web processes.

The counts are in Redis. While it does not answer, each process counts for itself, so that sign-in and API work without
it, and limits still hold for each process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, TypeVar

from django.core.cache import BaseCache, caches
from redis import RedisError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0  # after Redis did not answer

Result = TypeVar("Result")


class SharedCounters:
    """Counters that expire. `shared` and `local` are names of `settings.CACHES`."""

    def __init__(self, shared: str = "default", local: str = "local") -> None:
        self.shared, self.local = shared, local
        self.retry_at = 0.0

    def count(self, key: str, seconds: int) -> int:
        """Counts an event and returns the count, which restarts `seconds` after its first event."""
        return self._call(lambda cache: increment(cache, key, seconds))

    def lower(self, key: str) -> None:
        """Takes one event back, if it is still counted."""
        self._call(lambda cache: decrement(cache, key))

    def reset(self, keys: Iterable[str]) -> None:
        names = list(keys)
        self._call(lambda cache: cache.delete_many(names))

    def _call(self, function: Callable[[BaseCache], Result]) -> Result:
        if monotonic() >= self.retry_at:
            try:
                return function(caches[self.shared])
            except (RedisError, OSError) as error:
                self.retry_at = monotonic() + RETRY_SECONDS
                log.warning("Redis does not answer (%s); each web process counts for itself until it does.", error)
        return function(caches[self.local])


def increment(cache: BaseCache, key: str, seconds: int) -> int:
    try:
        return cache.incr(key)
    except ValueError:  # it is the first event, or the count has expired
        return 1 if cache.add(key, 1, seconds) else increment_existing(cache, key)


def increment_existing(cache: BaseCache, key: str) -> int:
    """Another request was faster to add the key."""
    try:
        return cache.incr(key)
    except ValueError:
        return 1


def decrement(cache: BaseCache, key: str) -> None:
    try:
        cache.decr(key)
    except ValueError:  # it has expired
        return


counters = SharedCounters()
