"""The tracker writes the metrics of ROLL's pipelines to a file."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolloutdeck.trainers.roll.tracker import RollTracker
from rolloutdeck.watch.scan import scan_folders
from rolloutdeck.watch.types import ScanOptions

VALUES = {
    "critic/score/mean@mean": np.float32(0.5), "actor/loss": float("nan"), "system/samples": 64, "name": "a text",
    "time": {"step_train@sum": 1.5}, "rows": np.ones(3),
}  # fmt: skip


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]


def test_the_numbers_of_a_step_are_one_line_and_other_values_are_left_out(tmp_path: Path) -> None:
    tracker = RollTracker(tmp_path)
    tracker.log(VALUES, step=0)
    tracker.log({"a": 1}, step=1, more=True)
    values = {"critic/score/mean": 0.5, "actor/loss": None, "system/samples": 64, "time/step_train": 1.5}
    assert read_lines(tmp_path) == [{"step": 0, "data": values}, {"step": 1, "data": {"a": 1}}]


def test_a_resumed_run_appends_to_the_file_and_writes_no_step_twice(tmp_path: Path) -> None:
    RollTracker(tmp_path).log({"a": 1}, step=0)
    resumed = RollTracker(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(resumed.log, {"a": 1}, 0).result()
    resumed.log({"a": 2}, step=1)
    assert [line["step"] for line in read_lines(tmp_path)] == [0, 1]


@pytest.mark.parametrize("folder", [None, "", "/proc/none/here"])
def test_the_training_goes_on_if_the_folder_cannot_be_written(folder: str | None) -> None:
    RollTracker(folder).log({"a": 1}, step=0)


FULL_DISK_PROGRAM = """
import resource, sys
from rolloutdeck.trainers.roll.tracker import RollTracker
tracker = RollTracker(sys.argv[1])
tracker.log({"a": 1}, step=0)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (tracker.path.stat().st_size + 5, limit[1]))
tracker.log({"a": 2}, step=1)
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
tracker.log({"a": 3}, step=2)
"""


def test_a_full_disk_loses_only_the_metrics_of_that_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_PROGRAM, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert [line["step"] for line in read_lines(tmp_path)] == [0, 2]
    assert "no room for the metrics of step 1" in done.stderr


def test_watch_and_import_recognize_the_file(tmp_path: Path) -> None:
    RollTracker(tmp_path).log({"a": 1}, step=0)
    [result] = scan_folders([tmp_path], ScanOptions()).files
    assert (result.kind.format, result.kind.content) == ("verl-metrics", "metrics")
