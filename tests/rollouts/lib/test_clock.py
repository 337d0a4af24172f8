from __future__ import annotations

import os
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


def test_forked_processes_notice_a_change_once_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, real = ClockWatch(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    child = os.fork()
    if not child:
        os._exit(0 if watch.has_jumped() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not watch.has_jumped()
