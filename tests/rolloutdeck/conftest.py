from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck import courier, opening, sender
from rolloutdeck.run import Run
from tests.rolloutdeck.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.down()


@pytest.fixture
def spool_root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def at_receiver(receiver: Receiver, spool_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """This process and its children record to the receiver, with short pauses and a home of their own."""
    for name, value in {"URL": receiver.url, "TOKEN": "secret", "SPOOL": str(spool_root), "ATTEMPT": "first"}.items():
        monkeypatch.setenv(f"ROLLOUTDECK_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    for module, name in [(courier, "FIRST_PAUSE"), (courier, "LAST_PAUSE"), (courier, "KEPT_PAUSE")]:
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(sender, "LOOK_AGAIN", 0.05)
    monkeypatch.setattr(sender, "ADOPT_SECONDS", 0.2)
    return receiver


@pytest.fixture
def start(at_receiver: Receiver) -> Iterator[Callable[..., Run]]:
    """Opens runs as a trainer does, and ends them after the test."""
    opened: list[Run] = []

    def init(**fields: Any) -> Run:
        opened.append(opening.init(**{"project": "math", "name": "grpo", **fields}))
        return opened[-1]

    yield init
    for run in opened:
        run.finish(timeout=0)
    opening._runs.clear()
