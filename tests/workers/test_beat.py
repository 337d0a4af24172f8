"""One of several schedulers sends the sweep."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rollouts.lib import get_current_process_id
from workers import app, beat
from workers.liveness import connect_redis


@pytest.fixture(autouse=True)
def lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    key, connection = f"{tmp_path}:scheduler", connect_redis()
    monkeypatch.setattr(beat, "LEASE_KEY", key)
    yield key
    connection.delete(key)


def build_id(pid: int) -> str:
    """The id of another process of this host."""
    code = f"from rollouts.lib.process_id import read_start_ticks; print(read_start_ticks({pid}))"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    host = get_current_process_id().rsplit(":", 2)[0]
    return f"{host}:{pid}:{started}"


def test_the_scheduler_that_has_the_lease_keeps_it(lease: str) -> None:
    assert beat.take_lease() and beat.take_lease()
    assert 0 < connect_redis().ttl(lease) <= beat.LEASE_SECONDS


def test_another_scheduler_waits_until_the_process_has_ended(lease: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    connect_redis().set(lease, build_id(holder.pid), ex=60)
    assert not beat.take_lease()
    holder.kill()
    holder.wait()
    assert beat.take_lease()


def test_the_scheduler_of_another_machine_keeps_it_until_it_expires(lease: str) -> None:
    connect_redis().set(lease, "elsewhere:1:1", px=200)
    assert not beat.take_lease()
    while connect_redis().exists(lease):
        pass
    assert beat.take_lease()


def test_a_scheduler_takes_the_lease_without_redis(settings: Any, tmp_path: Path) -> None:
    settings.REDIS_URL = f"unix://{tmp_path}/none.sock"
    assert beat.take_lease()


def test_a_clock_that_was_ahead_at_the_start_does_not_stop_the_sweep() -> None:
    scheduler = beat.SharedScheduler(app=app, lazy=True)
    scheduler.setup_schedule()
    for entry in scheduler.schedule.values():
        entry.last_run_at = entry.default_now() + timedelta(days=1)
    assert scheduler.tick() <= beat.CHECK_SECONDS
    for entry in scheduler.schedule.values():
        assert scheduler.is_due(entry)[1] <= entry.schedule.run_every.total_seconds()
