"""Counts are shared by all web processes, and work without Redis."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dashboard import counters
from dashboard.counters import SharedCounters


def test_two_processes_share_their_counts(tmp_path: Path) -> None:
    one, other = SharedCounters(f"{tmp_path}:"), SharedCounters(f"{tmp_path}:")
    assert [one.count("a", 60), other.count("a", 60), one.count("b", 60)] == [1, 2, 1]
    other.lower("a")
    assert one.count("a", 60) == 2
    other.reset(["a", "never"])
    other.lower("a")
    assert one.count("a", 60) == 1


def test_a_count_ends_some_time_after_its_first_event(tmp_path: Path) -> None:
    own = SharedCounters(f"{tmp_path}:")
    assert [own.count("short", 1), own.count("short", 1)] == [1, 2]
    time.sleep(1.05)
    assert own.count("short", 1) == 1


def test_without_redis_each_process_counts_for_itself(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SharedCounters(f"{tmp_path}:")
    connected = own.connection
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"
    del own.connection
    assert [own.count("a", 60), own.count("a", 60)] == [1, 2]
    own.lower("a")
    own.connection = connected
    assert own.count("a", 60) == 2, "Redis is not asked again at once"
    monkeypatch.setattr(counters, "monotonic", lambda: time.monotonic() + counters.RETRY_SECONDS)
    assert own.count("a", 60) == 1
