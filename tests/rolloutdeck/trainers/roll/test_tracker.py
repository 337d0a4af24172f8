"""Metrics of ROLL, as its pipelines call a tracker."""

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


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]


def test_the_numbers_of_a_step_are_a_line_and_what_is_none_is_left_out(tmp_path: Path) -> None:
    tracker = RollTracker(tmp_path)
    tracker.log(VALUES, step=0)
    tracker.log({"a": 1}, step=1, more=True)
    values = {"critic/score/mean": 0.5, "actor/loss": None, "system/samples": 64, "time/step_train": 1.5}
    assert lines(tmp_path) == [{"step": 0, "data": values}, {"step": 1, "data": {"a": 1}}]


def test_a_launch_goes_on_in_the_file_and_the_history_of_a_resume_is_not_told_twice(tmp_path: Path) -> None:
    RollTracker(tmp_path).log({"a": 1}, step=0)
    resumed = RollTracker(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(resumed.log, {"a": 1}, 0).result()
    resumed.log({"a": 2}, step=1)
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]


@pytest.mark.parametrize("folder", [None, "", "/proc/none/here"])
def test_where_nothing_can_be_written_the_training_goes_on(folder: str | None) -> None:
    RollTracker(folder).log({"a": 1}, step=0)


FILLED = """
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


def test_a_step_for_which_the_disk_has_no_room_costs_that_step_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FILLED, str(tmp_path)], check=True, capture_output=True, text=True)
    assert [line["step"] for line in lines(tmp_path)] == [0, 2]
    assert "no room for the metrics of step 1" in done.stderr


def test_watch_and_import_know_the_file(tmp_path: Path) -> None:
    RollTracker(tmp_path).log({"a": 1}, step=0)
    [result] = scan_folders([tmp_path], ScanOptions()).files
    assert (result.kind.format, result.kind.content) == ("verl-metrics", "metrics")
