from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutdeck.cli.entry import main
from tests.rolloutdeck.support.commands import Command
from tests.rolloutdeck.support.deck import Deck


@pytest.fixture
def deck() -> Iterator[Deck]:
    running = Deck()
    yield running
    running.down()


@pytest.fixture
def command(deck: Deck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Status, standard output and standard error of a command."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "secret")

    def run(*words: object) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run
