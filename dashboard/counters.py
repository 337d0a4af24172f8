"""Counts events, such as sign-in attempts, over all web processes.

The counts are in Redis. While it does not answer, each process counts for itself, so that sign-in and API work without
it, and limits still hold for each process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from time import monotonic
from typing import Any, Final

import redis
from django.conf import settings
from django.core.cache import cache

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0  # after Redis did not answer
MAX_ANSWER_SECONDS: Final = 0.5
LOWER_EXISTING: Final = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('DECR', KEYS[1]) end"


class SharedCounters:
    """Counters that expire."""

    def __init__(self, prefix: str = "rolloutdeck:count:") -> None:
        self.prefix = prefix
        self.retry_at = 0.0

    @cached_property
    def connection(self) -> Any:  # redis-py says of each answer that it may be awaited
        timeouts = {"socket_timeout": MAX_ANSWER_SECONDS, "socket_connect_timeout": MAX_ANSWER_SECONDS}
        return redis.Redis.from_url(settings.REDIS_URL, **timeouts)

    def count(self, key: str, seconds: int) -> int:
        """Counts an event and returns the count, which restarts `seconds` after its first event."""
        if self.is_redis_due():
            try:
                with self.connection.pipeline() as commands:
                    commands.set(self.prefix + key, 0, ex=seconds, nx=True)
                    commands.incr(self.prefix + key)
                    return int(commands.execute()[1])
            except redis.RedisError as error:
                self.pause_redis(error)
        cache.add(self.prefix + key, 0, seconds)
        with suppress(ValueError):  # it has just expired
            return cache.incr(self.prefix + key)
        return 1

    def lower(self, key: str) -> None:
        """Takes one event back, if it is still counted."""
        if self.is_redis_due():
            try:
                self.connection.eval(LOWER_EXISTING, 1, self.prefix + key)
            except redis.RedisError as error:
                self.pause_redis(error)
        with suppress(ValueError):
            cache.decr(self.prefix + key)

    def reset(self, keys: Iterable[str]) -> None:
        names = [self.prefix + key for key in keys]
        if self.is_redis_due():
            try:
                self.connection.delete(*names)
            except redis.RedisError as error:
                self.pause_redis(error)
        cache.delete_many(names)

    def is_redis_due(self) -> bool:
        return monotonic() >= self.retry_at

    def pause_redis(self, error: redis.RedisError) -> None:
        self.retry_at = monotonic() + RETRY_SECONDS
        log.warning("Redis does not answer (%s); each web process counts for itself until it does.", error)


counters = SharedCounters()
