"""Counts are the same for all web processes, and go on without Redis."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from dashboard import counters
from dashboard.counters import SharedCounters

REDIS = "django.core.cache.backends.redis.RedisCache"


@pytest.fixture
def redis_counts(settings: Any, tmp_path: Path) -> None:
    shared = {"BACKEND": REDIS, "LOCATION": django_settings.REDIS_URL, "KEY_PREFIX": str(tmp_path)}
    settings.CACHES = {**settings.CACHES, "default": shared}


def test_two_processes_share_their_counts(redis_counts: None, settings: Any) -> None:
    one, other = SharedCounters(), SharedCounters()
    assert [one.count("a", 60), other.count("a", 60), one.count("b", 60)] == [1, 2, 1]
    other.lower("a")
    assert one.count("a", 60) == 2
    other.reset(["a", "never"])
    assert one.count("a", 60) == 1
    one.lower("never")


def test_a_count_ends_some_time_after_its_first_event(redis_counts: None) -> None:
    own = SharedCounters()
    assert [own.count("short", 1), own.count("short", 1)] == [1, 2]
    time.sleep(1.05)
    assert own.count("short", 1) == 1


def test_without_redis_each_process_counts_for_itself(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = {"BACKEND": REDIS, "LOCATION": f"unix://{tmp_path}/none.sock"}
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "here"}
    settings.CACHES = {"default": down, "local": local}
    own = SharedCounters()
    assert [own.count("a", 60), own.count("a", 60)] == [1, 2]
    settings.CACHES = {"default": {**local, "LOCATION": str(tmp_path)}, "local": local}
    assert own.count("a", 60) == 3, "Redis is not asked again at once"
    monkeypatch.setattr(counters, "monotonic", lambda: time.monotonic() + counters.RETRY_SECONDS)
    assert own.count("a", 60) == 1
