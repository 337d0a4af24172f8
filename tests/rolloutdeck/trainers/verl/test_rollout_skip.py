"""verl's skip roles as the plug-in registers them. What they replay: `tests/trainers/verl/test_replay.py`."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.verl.plugin import rollout_skip
from rolloutdeck.trainers.verl.plugin.rollout_skip import UNKNOWN_LOADER


class PinnedReplay:
    """A replay with a pin for each step."""

    def __init__(self) -> None:
        self.not_replayed: list[tuple[int, type[Exception], str]] = []

    def has_step(self, step: int) -> bool:
        return True

    def report_not_replayed(self, step: int, error: Exception) -> None:
        self.not_replayed.append((step, type(error), str(error)))


class SkipRoleWithOtherLoader:
    """A skip role of a verl that loads its dumps with another function."""

    def load_dump_data(self, step: int) -> Any:
        return self.read(step)  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", rollout_skip.SKIP_ROLES)
def test_a_verl_with_another_loader_replays_nothing_and_the_reason_is_reported(role: str) -> None:
    kind = rollout_skip.build_skip_class(role, SkipRoleWithOtherLoader)
    created = kind.__new__(kind)
    created.replay, created.pinned_folders, created.pinned_batches = PinnedReplay(), {}, {}
    assert created.meet_precondition(3) is False
    assert created.replay.not_replayed == [(3, NotReplayableError, UNKNOWN_LOADER)]
