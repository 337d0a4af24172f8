"""Killing backup, restore and fsck at random moments loses nothing. `scripts/kill_maintenance.py` does it 200 times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_kills_of_backup_restore_and_fsck_lose_nothing() -> None:
    seed = os.environ.get("KILL_SEED", str(time.time_ns() % 100_000))
    print(f"again with KILL_SEED={seed}")
    command = [sys.executable, "-m", "scripts.kill_maintenance", "--kills", "20", "--seed", seed]
    real = {"DATABASE_URL": "postgres://127.0.0.1:1/real", "ROLLOUTDECK_STORAGE": "s3://real"}  # never used
    done = subprocess.run(command, cwd=ROOT, env=os.environ | real, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 kills" in done.stdout.splitlines()[-1]
