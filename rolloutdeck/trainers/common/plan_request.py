"""Requests the replay plan of a training, and again if the server did not respond."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.replay import PlanRevision

PAUSE_SECONDS = 60.0  # between two requests to a server that does not respond
TIMEOUT_SECONDS = 5.0  # of a repeated request, since the trainer waits


class PlanRequest:
    """The plan that one training follows.

    A server that restarts while the training starts must not turn the replay off. So the request is repeated at later
    steps, at most once a minute; the steps until then are generated.
    """

    def __init__(self) -> None:
        self._plan: PlanRevision | None = None
        self._next = 0.0  # when the server is asked again

    def load_plan(self, run: Run, name: str, facts: Mapping[str, Any]) -> PlanRevision:
        """Returns the plan; an empty one if there is none or the server has not responded yet."""
        if self._plan is None:
            self._plan = run.replay_plan(name, facts)
        elif self._plan.failure and time.monotonic() >= self._next:
            self._plan = run.replay_plan(name, facts, timeout=TIMEOUT_SECONDS)
        else:
            return self._plan
        self._next = time.monotonic() + PAUSE_SECONDS
        return self._plan
