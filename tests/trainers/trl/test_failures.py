"""Failures do not change a real TRL training: its result is bit for bit that of a run without the callback."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.plans import PlanServer
from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

SCRIPT = "../../trl/inside/training.py"


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(SCRIPT, "grpo", "plain", folder=tmp_path_factory.mktemp("alone"))


def has_same_result(found: Training, plain_training: Training) -> bool:
    """Compares all but the guidance of reward functions."""
    results = [{**training.json("result.json"), "told": None} for training in (found, plain_training)]
    return repr(results[0]) == repr(results[1]) and repr(found.json("seen.json")) == repr(
        plain_training.json("seen.json")
    )


def create_planning_server() -> PlanServer:
    """A server that has a pin for step 3; its bytes never come."""
    return PlanServer(b"{}", 3, "rollout-0.json")


def test_a_killed_server_does_not_change_the_training(plain_training: Training, tmp_path: Path) -> None:
    receiver = create_planning_server()
    killer = threading.Thread(target=lambda: (wait_until(lambda: receiver.dumps, 200), receiver.down()), daemon=True)
    killer.start()
    result = train(SCRIPT, "grpo", "keep", "replay", "guided", folder=tmp_path, receiver=receiver)
    killer.join(60)
    assert receiver.dumps and "Step 3 is not replayed (miss)" in result.done.stderr
    assert has_same_result(result, plain_training)


def test_a_full_disk_does_not_change_the_training(plain_training: Training, tmp_path: Path) -> None:
    """The disk also has no space for the bytes of a pin."""
    result = train(
        SCRIPT, "grpo", "keep", "replay", "guided", "full", folder=tmp_path, receiver=create_planning_server()
    )
    assert not list(tmp_path.glob("kept/*/rollout-*.json"))
    assert "Step 3 is not replayed (miss)" in result.done.stderr
    assert has_same_result(result, plain_training)


def test_hooks_that_raise_do_not_change_the_training(plain_training: Training, tmp_path: Path) -> None:
    """The hooks of the callback, and the rollout_func that replays."""
    result = train(SCRIPT, "grpo", "raise", "replay", "guided", folder=tmp_path)
    assert not result.receiver.dumps
    assert result.receiver.points()
    for hook in ("capture._capture", "replay._try_replay", "guidance._find_rows"):
        assert f"Training continues, but Rolloutdeck lost something in {hook}: NameError" in result.done.stderr
    assert has_same_result(result, plain_training)
