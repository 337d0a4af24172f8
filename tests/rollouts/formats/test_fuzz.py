"""Damaged copies of every real dump, read in a process with limits of memory and time, see `fuzz.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollouts.formats import FORMAT_NAMES
from tests.rollouts.formats.fuzz import list_dumps

COPIES = 30  # per format; about five seconds on one core
MAX_SECONDS = 180  # on a busy machine


def test_every_format_has_a_real_dump_that_is_damaged() -> None:
    assert [name for name, paths in list_dumps().items() if not paths] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.timeout(MAX_SECONDS + 20)
def test_a_damaged_dump_costs_bounded_time_and_memory_and_raises_only_a_refusal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rollouts.formats.fuzz", "--copies", str(COPIES)]
    environment = {**os.environ, "ROLLOUTDECK_DATA": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=MAX_SECONDS, check=False)
    *findings, counts = done.stdout.splitlines() or [""]
    assert done.returncode == 0 and not findings, "\n".join([*findings, *done.stderr.splitlines()[-3:]])
    assert set(json.loads(counts)) == {*FORMAT_NAMES, "safe_pickle", "watch"}
