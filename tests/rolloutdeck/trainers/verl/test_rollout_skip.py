"""verl's skip roles as the plug-in registers them again; `tests/trainers/verl/test_replay.py` has what they replay."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.verl.plugin import rollout_skip
from rolloutdeck.trainers.verl.plugin.rollout_skip import UNKNOWN_LOADER


class Asked:
    """A replay with a pin for each step."""

    def __init__(self) -> None:
        self.left: list[tuple[int, type[Exception], str]] = []

    def has_step(self, step: int) -> bool:
        return True

    def report_not_replayed(self, step: int, error: Exception) -> None:
        self.left.append((step, type(error), str(error)))


class Later:
    """A skip role of a verl that loads its dumps in another way."""

    def load_dump_data(self, step: int) -> Any:
        return self.read(step)  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", rollout_skip.SKIP_ROLES)
def test_a_verl_that_would_load_a_dump_itself_replays_nothing_and_says_so(role: str) -> None:
    kind = rollout_skip.build_skip_class(role, Later)
    created = kind.__new__(kind)
    created.replay, created.pinned_folders, created.pinned_batches = Asked(), {}, {}
    assert created.meet_precondition(3) is False
    assert created.replay.left == [(3, NotReplayableError, UNKNOWN_LOADER)]
