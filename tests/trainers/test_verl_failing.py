"""What goes wrong beside verl's trainer changes nothing in what it trains on: it is what it is without us."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.rolloutdeck.receiver import Receiver, until
from tests.trainers.verl_process import Training, train

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]


def held(found: Training) -> list[Any]:
    """What the trainer held of each row at each update; verl draws a uid for each row."""
    return [[{**row, "uid": ""} for row in step["rows"]] for step in found.json("seen.json")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A run whose logger does not name us."""
    found = train("v0.py", "unnamed", folder=tmp_path_factory.mktemp("alone"))
    assert found.deck.posts == found.deck.dumps == []
    assert len(held(found)) == 2
    return held(found)


def test_a_server_that_is_killed_in_the_middle(alone: list[Any], tmp_path: Path) -> None:
    deck = Receiver()
    killer = threading.Thread(target=lambda: (until(lambda: deck.posts, 200), deck.down()), daemon=True)
    killer.start()
    found = train("v0.py", folder=tmp_path, deck=deck)
    killer.join(60)
    assert deck.posts and held(found) == alone
    assert len(found.wrote("rollout/2.jsonl")) == 4


def test_a_disk_that_is_full(alone: list[Any], tmp_path: Path) -> None:
    found = train("v0.py", "full", folder=tmp_path)
    assert "the spool's disk failed" in found.done.stderr and held(found) == alone


def test_hooks_that_raise(alone: list[Any], tmp_path: Path) -> None:
    """Of validations, of trained batches, and of the logger."""
    found = train("v0.py", "raise", folder=tmp_path)
    for hook in ("legacy.take", "metrics.add"):
        assert f"Rolloutdeck lost something in {hook}: NameError" in found.done.stderr
    assert held(found) == alone
