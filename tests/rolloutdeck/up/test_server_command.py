"""Commands on the server's machine, as a shell sees them before Django has started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rolloutdeck.support.programs import ROOT


def start(*words: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rolloutdeck", *map(str, words)]
    environ = {**os.environ, **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", "nope"])
def test_a_restore_without_a_backup_says_so_and_creates_nothing(tmp_path: Path, name: str) -> None:
    backups = tmp_path / "backups"
    if name:
        (backups / "20261123T231500Z").mkdir(parents=True)
        (backups / "20261123T231500Z" / "manifest.json").touch()
    (tmp_path / "backups/20261124T231500Z.partial").mkdir(parents=True)
    (tmp_path / "backups/20261124T231500Z.partial/manifest.json").touch()
    words = ["--backup", name] if name else []
    process = start("restore", backups, "--data", tmp_path / "new", *words)
    _, error = process.communicate(timeout=60)
    says = f"no backup nope in {backups}. It has: 20261123T231500Z." if name else f"no finished backup in {backups}."
    assert process.returncode == 2 and f"There is {says}" in error
    assert not (tmp_path / "new").exists() and not (backups / "lock").exists()


def test_a_restore_from_no_folder_creates_nothing(tmp_path: Path) -> None:
    process = start("restore", tmp_path / "missing", "--data", tmp_path / "new")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2 and "no finished backup" in error
    assert not any(tmp_path.iterdir())
