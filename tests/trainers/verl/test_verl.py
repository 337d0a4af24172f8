"""Files written by the code of a real verl, from PyPI, in an environment of its own (`make test-trainers`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rolloutdeck.watch.scan import scan_folders
from rolloutdeck.watch.types import ScanOptions
from rollouts.formats import HEAD_BYTES, DumpContext, select_format
from rollouts.samples.record import MetricPoint, Record

pytestmark = pytest.mark.trainers


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = os.environ.get("TRAINERS_PYTHON")
    if not python:
        pytest.skip("needs TRAINERS_PYTHON, the Python of an environment with verl")
    into = tmp_path_factory.mktemp("verl")
    script = Path(__file__).with_name("write_with_verl.py")
    done = subprocess.run([python, script, into], cwd=into, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return into


def test_its_rollout_file_becomes_records(written: Path) -> None:
    path = written / "rollouts" / "7.jsonl"
    with path.open("rb") as stream:
        form = select_format(path.name, stream.read(HEAD_BYTES))
        stream.seek(0)
        found = [each for each in form.read(stream, DumpContext(path.name, "train", 7)) if isinstance(each, Record)]
    assert form.name == "verl-jsonl"
    assert [(each.prompt, each.response, each.ground_truth) for each in found] == [
        ("What is 2+2?", "4", "4"),
        ("What is 3+3?\u2028Think.", "six 😀", "6"),
    ]
    assert [each.score for each in found] == [1.0, None]
    assert [each.rewards["acc"] for each in found] == [1.0, 0.0]
    assert [each.rewards["overlong_reward"] for each in found] == [0.0, -0.25]


def test_its_metrics_file_becomes_points(written: Path) -> None:
    path = written / "metrics.jsonl"
    with path.open("rb") as stream:
        form = select_format(path.name, stream.read(HEAD_BYTES))
        stream.seek(0)
        points = [
            each for each in form.read(stream, DumpContext(path.name, "train", None)) if isinstance(each, MetricPoint)
        ]
    assert form.name == "verl-metrics"
    assert [(point.step, point.values) for point in points] == [
        (6, {"critic/score/mean": 0.25, "actor/entropy": None}),
        (7, {"critic/score/mean": 0.5, "timing_s/gen": 3.5}),
    ]


def test_the_command_line_finds_both_and_their_steps(written: Path) -> None:
    found = scan_folders([written], ScanOptions()).files
    assert sorted((each.path.name, each.kind.format, each.split, each.step) for each in found) == [
        ("7.jsonl", "verl-jsonl", "train", 7),
        ("metrics.jsonl", "verl-metrics", "train", None),
    ]
