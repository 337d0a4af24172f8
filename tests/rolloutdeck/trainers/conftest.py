"""Fixtures for the tests of live plug-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rolloutdeck.client import start
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common import session as common_session
from tests.rolloutdeck.support.fake_server import Receiver
from tests.support.patching import patch_everywhere


class Recorder:
    """Finishes the runs of a live plug-in and reads what it sent to the receiver."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def finish(self) -> None:
        for session in common_session._sessions.values():
            session.flush(30)
        for run in start._runs:
            run.finish(timeout=30)

    def rows(self, split: str = "train") -> dict[int, list[dict[str, Any]]]:
        """step -> rows."""
        steps: dict[int, list[dict[str, Any]]] = {}
        for _, query, body in self.receiver.dumps:
            if query["split"] == split:
                steps.setdefault(int(query["step"]), []).extend(json.loads(line) for line in body.splitlines())
        return steps

    def metrics(self, step: int) -> dict[str, Any]:
        points = [point["values"] for point in self.receiver.points() if point["step"] == step]
        return {name: value for values in points for name, value in values.items()}

    def run(self) -> dict[str, Any]:
        """The request that created the run."""
        return next(body for path, body in self.receiver.posts if path.endswith("/runs/") and "config" in body)


@pytest.fixture
def recorder(connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A receiver to which the plug-ins record all tokens."""
    monkeypatch.setenv("ROLLOUTDECK_TOKENS", "all")
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    monkeypatch.setattr(common_session, "MAX_WAITING_STEPS", 100)  # no time passes between steps here
    yield Recorder(connected_receiver)
    for run in start._runs:
        run.finish(timeout=0)
    common_session._sessions.clear()
    start._runs.clear()
