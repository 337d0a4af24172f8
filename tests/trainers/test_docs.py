"""The commands of `docs/trainers.md` that need a trainer."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.rolloutdeck.support.fake_server import Receiver
from tests.trainers.verl.process import ROOT, Training, require_python

pytestmark = pytest.mark.trainers


def test_the_trl_example_trains_and_records_each_step(tmp_path: Path) -> None:
    lines = (ROOT / "docs/trainers.md").read_text().splitlines()
    (words,) = [shlex.split(line) for line in lines if line.startswith("python ")]
    receiver = Receiver()
    values = {
        "ROLLOUTDECK_URL": receiver.url,
        "ROLLOUTDECK_TOKEN": "t",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [require_python(), str(ROOT / words[1]), *words[2:], "--output", str(tmp_path / "out")],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **values},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = Training(receiver, tmp_path, done)
    assert [len(result.rows("train", step)) for step in (1, 2)] == [32, 32]
