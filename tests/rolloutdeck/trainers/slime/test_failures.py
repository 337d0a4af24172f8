"""Failures in slime's hooks do not change the samples that slime trains on."""

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
from tests.rolloutdeck.support.plans import PlanServer
from tests.rolloutdeck.support.programs import ROOT


def run_training(folder: Path, failure: str, server: PlanServer) -> tuple[dict[str, Any], str]:
    """Runs a training with a failure; returns the samples that slime went on with, and the log."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
    values = {"URL": server.url, "TOKEN": "t", "PROJECT": "math", "RUN": "new", "PLAN": "default", "TOKENS": "all"}
    environ = {**clean, "HOME": str(folder), **{f"ROLLOUTDECK_{name}": value for name, value in values.items()}}
    command = [sys.executable, "-m", "tests.rolloutdeck.support.fake_slime_training", str(folder), failure]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr


@pytest.fixture
def server() -> Any:
    result = PlanServer((fake_slime.DATA / "0.pt").read_bytes(), target=1)
    yield result
    result.down()


@pytest.fixture(scope="module")
def result_without_hooks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    server = PlanServer(b"", target=1)
    result, _ = run_training(tmp_path_factory.mktemp("alone"), "without", server)
    server.down()
    assert not server.posts and not server.dumps
    return result


def test_with_a_plan_the_second_rollout_is_the_pinned_one_and_all_five_hooks_record(
    server: PlanServer, tmp_path: Path
) -> None:
    result, _ = run_training(tmp_path, "", server)
    assert result["1"]["samples"] == fake_slime.load_dump("0.pt")
    values = [(query["split"], int(query["step"])) for _, query, _ in server.dumps]
    assert {("train", 0), ("train", 1), ("eval", 1)} == set(values)
    assert [body["outcome"] for body in server.posted("/replays/")] == ["hit"]


def test_a_server_that_is_killed_before_the_pin_is_downloaded_changes_no_samples(
    server: PlanServer, result_without_hooks: dict[str, Any], tmp_path: Path
) -> None:
    def kill() -> None:
        wait_until(lambda: (tmp_path / "asked").exists() and server.dumps, 200)
        server.down()
        (tmp_path / "gone").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result, message = run_training(tmp_path, "kill", server)
    killer.join(60)
    assert (tmp_path / "gone").exists() and "Rollout 1 is not replayed (miss)" in message
    assert result == result_without_hooks


def test_a_full_disk_changes_no_samples(
    server: PlanServer, result_without_hooks: dict[str, Any], tmp_path: Path
) -> None:
    """Also for the download of a pin."""
    result, message = run_training(tmp_path, "full", server)
    assert "Rollout 1 is not replayed (miss): [Errno 27]" in message
    assert not server.dumps
    assert result == result_without_hooks


def test_an_exception_in_each_hook_changes_no_samples(
    server: PlanServer, result_without_hooks: dict[str, Any], tmp_path: Path
) -> None:
    result, message = run_training(tmp_path, "raise", server)
    for hook in (
        "record._record_live_sample",
        "record._record_all_samples",
        "record._record_rollout",
        "record._record_eval",
        "replay._try_replay",
    ):
        assert f"Rolloutdeck lost something in {hook}: RuntimeError: a mistake of ours" in message
    assert result == result_without_hooks
