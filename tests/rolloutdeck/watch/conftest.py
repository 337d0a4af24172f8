"""A server that keeps what is sent, a folder that is written, and a new process that watches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutdeck.cli.watch import Follow
from rolloutdeck.lib.http import Server
from rolloutdeck.watch import follower
from rolloutdeck.watch.follower import Root
from rolloutdeck.watch.types import Choice
from rolloutdeck.watch.upload import Target
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import Trainer, Watching


@pytest.fixture
def deck() -> Iterator[Deck]:
    running = Deck()
    yield running
    running.down()


@pytest.fixture
def watching(deck: Deck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watching:
    """A new process's view of the folder `run`, whose state file lies in a home of its own. Still means still at two
    looks, so that no test waits."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0.0)

    def start(folder: Path = tmp_path / "run", choice: Choice | None = None) -> Follow:
        target = Target(Server(deck.url, "secret"), "math", "grpo", "files")
        return Follow(target, [Root(folder)], folder, choice or Choice())

    return start


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "run")
