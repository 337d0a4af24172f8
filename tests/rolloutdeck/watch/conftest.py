"""Fixtures: a fake server, a trainer that writes files, and a function that starts a `watch` of its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutdeck.cli.folders.run_follower import RunFollower
from rolloutdeck.lib.http import ServerClient
from rolloutdeck.watch import follower
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.types import ScanOptions
from rolloutdeck.watch.upload import UploadTarget
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer


@pytest.fixture
def deck() -> Iterator[Deck]:
    running = Deck()
    yield running
    running.down()


@pytest.fixture
def start_watch(deck: Deck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartWatch:
    """Starts a `watch` of the folder `run` as a new process does, with its state file in a folder of its own. A file is
    complete if two scans find it unchanged, so that no test waits."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0.0)

    def create_follower(folder: Path = tmp_path / "run", options: ScanOptions | None = None) -> RunFollower:
        target = UploadTarget(ServerClient(deck.url, "secret"), "math", "grpo", "files")
        return RunFollower(target, [WatchedFolder(folder)], folder, options or ScanOptions())

    return create_follower


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "run")
