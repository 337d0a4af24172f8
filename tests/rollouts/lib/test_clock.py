from __future__ import annotations

import time

import pytest

from rollouts.lib import ClockWatch


@pytest.mark.parametrize("hours", [2, -2])
def test_a_change_of_the_clock_is_noticed_once(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    watch, real = ClockWatch(), time.time
    assert not watch.has_jumped()
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    assert watch.has_jumped()
    assert not watch.has_jumped()
