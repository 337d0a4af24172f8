"""Files written by the code of a real verl, from PyPI, in an environment of its own (`make test-trainers`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolloutdeck.watch.scan import scan_folders
from rolloutdeck.watch.types import ScanOptions
from rollouts.formats import HEAD_BYTES, DumpContext, select_format
from rollouts.samples.record import MetricPoint, Record
from tests.trainers.interpreter import run_script

pytestmark = pytest.mark.trainers


@pytest.fixture(scope="module")
def dump_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("verl")
    script = Path(__file__).with_name("write_with_verl.py")
    done = run_script(script, [into], cwd=into, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return into


def test_a_rollout_file_of_verl_becomes_records(dump_folder: Path) -> None:
    path = dump_folder / "rollouts" / "7.jsonl"
    with path.open("rb") as stream:
        form = select_format(path.name, stream.read(HEAD_BYTES))
        stream.seek(0)
        matches = [item for item in form.read(stream, DumpContext(path.name, "train", 7)) if isinstance(item, Record)]
    assert form.name == "verl-jsonl"
    assert [(item.prompt, item.response, item.ground_truth) for item in matches] == [
        ("What is 2+2?", "4", "4"),
        ("What is 3+3?\u2028Think.", "six 😀", "6"),
    ]
    assert [item.score for item in matches] == [1.0, None]
    assert [item.rewards["acc"] for item in matches] == [1.0, 0.0]
    assert [item.rewards["overlong_reward"] for item in matches] == [0.0, -0.25]


def test_a_metrics_file_of_verl_becomes_points(dump_folder: Path) -> None:
    path = dump_folder / "metrics.jsonl"
    with path.open("rb") as stream:
        form = select_format(path.name, stream.read(HEAD_BYTES))
        stream.seek(0)
        points = [
            item for item in form.read(stream, DumpContext(path.name, "train", None)) if isinstance(item, MetricPoint)
        ]
    assert form.name == "verl-metrics"
    assert [(point.step, point.values) for point in points] == [
        (6, {"critic/score/mean": 0.25, "actor/entropy": None}),
        (7, {"critic/score/mean": 0.5, "timing_s/gen": 3.5}),
    ]


def test_the_scan_of_a_folder_finds_both_files_and_their_steps(dump_folder: Path) -> None:
    result = scan_folders([dump_folder], ScanOptions()).files
    assert sorted((item.path.name, item.kind.format, item.split, item.step) for item in result) == [
        ("7.jsonl", "verl-jsonl", "train", 7),
        ("metrics.jsonl", "verl-metrics", "train", None),
    ]
