"""Fixtures for tests of the web process."""

from __future__ import annotations

import math

import pytest

from dashboard.counters import counters


@pytest.fixture
def local_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of this process, which expire with the clock of the test. Redis has its own clock."""
    monkeypatch.setattr(counters, "retry_at", math.inf)
