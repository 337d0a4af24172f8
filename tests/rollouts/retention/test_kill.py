"""Killing a worker at any moment of a pass leaves complete data, and the next pass continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def test_a_pass_that_is_killed_many_times_leaves_complete_data(tmp_path: Path) -> None:
    environ = {**os.environ, "ROLLOUTDECK_DATA": str(tmp_path / "data"), "HOME": str(tmp_path)}
    environ.pop("DATABASE_URL", None)
    command = [sys.executable, "-m", "tests.rollouts.retention.killed_passes", "20"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 2, "it was killed during the pass"
