from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rolloutdeck.client import start
from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.common import session as shared
from tests.rolloutdeck.support.fake_server import Receiver
from tests.support.patching import patch_everywhere


class Recorded:
    """What a live plug-in has sent, once the run is finished."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def finish(self) -> None:
        for session in shared._sessions.values():
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
        """The run as it was opened."""
        return next(body for path, body in self.receiver.posts if path.endswith("/runs/") and "config" in body)


@pytest.fixture
def recorded(at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """A receiver to which the plug-ins record all tokens."""
    monkeypatch.setenv("ROLLOUTDECK_TOKENS", "all")
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    monkeypatch.setattr(shared, "MAX_WAITING_STEPS", 100)  # a step takes no time here
    yield Recorded(at_receiver)
    for run in start._runs:
        run.finish(timeout=0)
    shared._sessions.clear()
    start._runs.clear()
