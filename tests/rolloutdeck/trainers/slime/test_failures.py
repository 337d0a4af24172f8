"""What goes wrong beside slime's hooks changes nothing in what slime goes on with: it is what it is without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.rolloutdeck.support import fake_slime
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.plans import Planning
from tests.rolloutdeck.support.programs import ROOT


def training(folder: Path, wrong: str, deck: Planning) -> tuple[dict[str, Any], str]:
    """What slime went on with, and what was said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
    values = {"URL": deck.url, "TOKEN": "t", "PROJECT": "math", "RUN": "new", "PLAN": "default", "TOKENS": "all"}
    environ = {**clean, "HOME": str(folder), **{f"ROLLOUTDECK_{name}": value for name, value in values.items()}}
    command = [sys.executable, "-m", "tests.rolloutdeck.support.fake_slime_training", str(folder), wrong]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr


@pytest.fixture
def deck() -> Any:
    result = Planning((fake_slime.DATA / "0.pt").read_bytes(), target=1)
    yield result
    result.down()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    deck = Planning(b"", target=1)
    result, _ = training(tmp_path_factory.mktemp("alone"), "without", deck)
    deck.down()
    assert not deck.posts and not deck.dumps
    return result


def test_with_a_plan_the_second_rollout_is_the_pinned_one_and_all_five_hooks_tell(
    deck: Planning, tmp_path: Path
) -> None:
    result, _ = training(tmp_path, "", deck)
    assert result["1"]["samples"] == fake_slime.dumped("0.pt")
    values = [(query["split"], int(query["step"])) for _, query, _ in deck.dumps]
    assert {("train", 0), ("train", 1), ("eval", 1)} == set(values)
    assert [body["outcome"] for body in deck.posted("/replays/")] == ["hit"]


def test_a_server_that_is_killed_before_the_pin_is_fetched(
    deck: Planning, alone: dict[str, Any], tmp_path: Path
) -> None:
    def kill() -> None:
        wait_until(lambda: (tmp_path / "asked").exists() and deck.dumps, 200)
        deck.down()
        (tmp_path / "gone").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result, message = training(tmp_path, "kill", deck)
    killer.join(60)
    assert (tmp_path / "gone").exists() and "Rollout 1 is not replayed (miss)" in message
    assert result == alone


def test_a_disk_that_is_full(deck: Planning, alone: dict[str, Any], tmp_path: Path) -> None:
    """Also where the bytes of a pin would lie."""
    result, message = training(tmp_path, "full", deck)
    assert "Rollout 1 is not replayed (miss): [Errno 27]" in message
    assert not deck.dumps
    assert result == alone


def test_a_mistake_of_ours_in_each_hook(deck: Planning, alone: dict[str, Any], tmp_path: Path) -> None:
    result, message = training(tmp_path, "raise", deck)
    for hook in (
        "record._record_live_sample",
        "record._record_all_samples",
        "record._record_rollout",
        "record._record_eval",
        "replay._try_replay",
    ):
        assert f"Rolloutdeck lost something in {hook}: RuntimeError: a mistake of ours" in message
    assert result == alone
