"""A server that keeps what is sent, a folder that is written, and a new process that watches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutdeck.cli.watch_run import RunFollower
from rolloutdeck.lib.http import ServerClient
from rolloutdeck.watch import follower
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.types import ScanOptions
from rolloutdeck.watch.upload import UploadTarget
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

    def start(folder: Path = tmp_path / "run", choice: ScanOptions | None = None) -> RunFollower:
        target = UploadTarget(ServerClient(deck.url, "secret"), "math", "grpo", "files")
        return RunFollower(target, [WatchedFolder(folder)], folder, choice or ScanOptions())

    return start


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "run")
