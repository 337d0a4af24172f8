"""What goes wrong beside a real trainer changes nothing in it: its result is bit for bit that of a run without us."""

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
def alone(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(SCRIPT, "grpo", "plain", folder=tmp_path_factory.mktemp("alone"))


def same(found: Training, alone: Training) -> bool:
    """But for what reward functions get as guidance."""
    results = [{**training.json("result.json"), "told": None} for training in (found, alone)]
    return repr(results[0]) == repr(results[1]) and repr(found.json("seen.json")) == repr(alone.json("seen.json"))


def planned() -> PlanServer:
    """A server that has a pin for step 3; its bytes never come."""
    return PlanServer(b"{}", 3, "rollout-0.json")


def test_a_server_that_is_killed_in_the_middle(alone: Training, tmp_path: Path) -> None:
    deck = planned()
    killer = threading.Thread(target=lambda: (wait_until(lambda: deck.dumps, 200), deck.down()), daemon=True)
    killer.start()
    result = train(SCRIPT, "grpo", "keep", "replay", "guided", folder=tmp_path, deck=deck)
    killer.join(60)
    assert deck.dumps and "Step 3 is not replayed (miss)" in result.done.stderr
    assert same(result, alone)


def test_a_disk_that_is_full(alone: Training, tmp_path: Path) -> None:
    """Also where the bytes of a pin would lie."""
    result = train(SCRIPT, "grpo", "keep", "replay", "guided", "full", folder=tmp_path, deck=planned())
    assert not list(tmp_path.glob("kept/*/rollout-*.json"))
    assert "Step 3 is not replayed (miss)" in result.done.stderr
    assert same(result, alone)


def test_hooks_that_raise(alone: Training, tmp_path: Path) -> None:
    """The callback's, and what generates in the trainer's stead."""
    result = train(SCRIPT, "grpo", "raise", "replay", "guided", folder=tmp_path)
    assert not result.deck.dumps
    assert result.deck.points()
    for hook in ("capture._capture", "replay._try_replay", "guidance._find_rows"):
        assert f"Training continues, but Rolloutdeck lost something in {hook}: NameError" in result.done.stderr
    assert same(result, alone)
