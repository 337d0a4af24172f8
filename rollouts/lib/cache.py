"""Caches in memory: the size of each, a class with a lock, and one call that clears them all.

What is cached never changes: it belongs to a version of a run, or to a file that is never rewritten. Only a prompt that
is forgotten has to leave them: `clear_all_processes` touches a file, and every process compares its time before a
request or a task.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import cachetools
from django.conf import settings

P = ParamSpec("P")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class CacheSize:
    """Entries of each cache in one process, unless the name says bytes, ids or names."""

    CHART_BYTES = 8_000_000  # charts of the run page; a live run has new ones at each step
    COMPARISONS = 16
    CONFIG_SHAPES = 2000  # sets of keys that configs have
    CONFIG_VALUES = 3_000_000  # values of configs, in the run list
    DECODERS = 2  # a large vocabulary takes 100 MB
    FOUND_IDS = 200_000  # of samples, in the results of body scans
    GUIDANCE_SELECTIONS = 16
    GROUP_NAMES = 300_000  # of groups whose answers are all correct or all wrong
    GROUP_ORDERS = 64  # ids of all groups of a result, in its order
    HEATMAPS = 32
    KEYBOARD_TEXTS = 256  # footers, and help dialogs
    LAST_VALUES = 20_000  # of metrics, in the run list
    LIVE_PANELS = 64  # panels of the pages of live runs
    LOGGED_KEYS = 256  # body files
    PROMPT_DIGESTS = 20_000  # steps
    QUERY_RESULTS = 512  # counts, and statistics for charts and filter chips
    QUERY_TERMS = 1024
    RUN_STATISTICS = 10_000
    SAMPLE_TABLES = 16  # runs
    SCATTERS = 128
    SPARKLINES = 5000
    STEP_STRIPS = 64
    STEP_TIMES = 32  # runs
    TABLE_LAYOUTS = 64
    TOKEN_COMMANDS = 512
    WORST_SAMPLES = 512  # steps of the live feed


CACHES: list[Cache[Any, Any]] = []


class Cache(Generic[Key, Value]):
    """A least-recently-used cache whose values weigh at most `max_size` in total.

    Without `weigh`, each value weighs 1. A value that is heavier than `max_size` is not cached.
    """

    def __init__(self, max_size: int, weigh: Callable[[Value], int] | None = None) -> None:
        self.lock = Lock()
        self.values: cachetools.LRUCache[Any, Any] = cachetools.LRUCache(max_size, weigh)
        CACHES.append(self)

    def get(self, key: Key) -> Value | None:
        with self.lock:
            value: Value | None = self.values.get(key)
            return value

    def get_many(self, keys: Iterable[Key], compute: Callable[[list[Key]], Mapping[Key, Value]]) -> dict[Key, Value]:
        """Returns the values of all keys. Those that are not cached are computed in one call."""
        requested = list(keys)
        with self.lock:
            cached_values = {key: self.values[key] for key in requested if key in self.values}
        missing = [key for key in requested if key not in cached_values]
        computed = compute(missing) if missing else {}
        for key, value in computed.items():
            self.put(key, value)
        return {**cached_values, **computed}

    def put(self, key: Key, value: Value) -> None:
        """Caches a value. A key that is already cached keeps its value."""
        with self.lock, suppress(ValueError):  # too heavy
            self.values.setdefault(key, value)

    def replace(self, key: Key, value: Value) -> None:
        """Caches a value, also for a key that has one."""
        with self.lock:
            self.values.pop(key, None)
            with suppress(ValueError):  # too heavy
                self.values[key] = value

    def clear(self) -> None:
        with self.lock:
            self.values.clear()


class NewestCache(Generic[Key, Value]):
    """Keeps one version of the value of each key. A live run has a new version at each step, and nobody asks for the
    others again. They would take memory, and what grows a little with each step leaves holes that nothing fits."""

    def __init__(self, max_size: int, weigh: Callable[[Value], int] | None = None) -> None:
        weigh_pair = None if weigh is None else lambda pair: weigh(pair[1])
        self.cache: Cache[Key, tuple[object, Value]] = Cache(max_size, weigh_pair)

    def load(self, key: Key, version: object, compute: Callable[[], Value]) -> Value:
        """Returns the value of this version, which is computed if another one is cached."""
        found = self.cache.get(key)
        if found and found[0] == version:
            return found[1]
        value = compute()
        self.cache.replace(key, (version, value))
        return value

    def load_many(
        self, versions: Mapping[Key, object], compute: Callable[[list[Key]], Mapping[Key, Value]]
    ) -> dict[Key, Value]:
        """Returns the values of these versions by key. Those that are not cached are computed in one call."""
        found = {key: pair[1] for key in versions if (pair := self.cache.get(key)) and pair[0] == versions[key]}
        missing = [key for key in versions if key not in found]
        computed = compute(missing) if missing else {}
        for key, value in computed.items():
            self.cache.replace(key, (versions[key], value))
        return {**found, **computed}


def cached(max_size: int) -> Callable[[Callable[P, Value]], Callable[P, Value]]:
    """Like `functools.lru_cache`, but `clear_caches` clears it with all other caches."""

    def decorate(function: Callable[P, Value]) -> Callable[P, Value]:
        cache: Cache[Any, Value] = Cache(max_size)
        return cachetools.cached(cache.values, lock=cache.lock)(function)

    return decorate


def cached_newest(max_size: int) -> Callable[[Callable[P, Value]], Callable[P, Value]]:
    """Caches a function of (id, created_at, version, ...), which is called without keywords, in a `NewestCache`."""

    def decorate(function: Callable[P, Value]) -> Callable[P, Value]:
        cache: NewestCache[Any, Value] = NewestCache(max_size)

        @wraps(function)
        def load(*args: P.args, **kwargs: P.kwargs) -> Value:
            pk, created_at, version, *others = args
            return cache.load((pk, created_at, *others), version, lambda: function(*args, **kwargs))

        return load

    return decorate


class Keyed(Protocol):
    @property
    def key(self) -> Hashable: ...


Owner = TypeVar("Owner", bound=Keyed)


def cached_by_key(max_size: int) -> Callable[[Callable[[Owner], Value]], Callable[[Owner], Value]]:
    """Caches a method by `self.key`, which names all that the result depends on. The cache does not keep `self`, whose
    models and querysets take more memory than the result."""

    def decorate(method: Callable[[Owner], Value]) -> Callable[[Owner], Value]:
        cache: Cache[Any, Value] = Cache(max_size)
        return cachetools.cached(cache.values, key=attrgetter("key"), lock=cache.lock)(method)

    return decorate


def clear_caches() -> None:
    """Clears every cache of this process."""
    for cache in CACHES:
        cache.clear()


cleared_at: int | None = None  # time of the file when this process looked last


def get_clear_path() -> Path:
    return Path(settings.DATA_DIR) / "run" / "caches_cleared"


def clear_all_processes() -> None:
    """Clears the caches of this process now, and those of every other one before its next request or task."""
    path = get_clear_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    clear_caches()


def clear_outdated() -> None:
    """Clears the caches of this process if `clear_all_processes` was called anywhere since the last look."""
    global cleared_at
    try:
        now = get_clear_path().stat().st_mtime_ns
    except OSError:
        now = 0
    if cleared_at is not None and now != cleared_at:
        clear_caches()
    cleared_at = now
