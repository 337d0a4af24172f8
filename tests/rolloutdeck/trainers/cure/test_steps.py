"""CURE's files do not name their step: it is counted from the lines and times of the results."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from rolloutdeck.trainers import cure
from rolloutdeck.watch import scan
from rolloutdeck.watch.types import ScanOptions

BASE, TUNED = "Qwen.Qwen2.5-7B-Instruct", ".root.CURE.optimization.ckpt.optimized"
SAMPLED, EVALUATED = b"code response length: 9.5, case response length: 8.1\n", b"code acc (average proportion): 0.5\n"
EVAL_OUTPUTS, EVAL_RESULTS = f"temp_data/outputs-eval-{TUNED}-E.json", f"results/results-eval-{TUNED}-E.txt"


def write_file(path: Path, content: bytes, modified_at: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified_at, modified_at))
    return path


def write_run(folder: Path, steps: int, evaluations: int, seconds_since: float, interval: int | None = 10) -> Path:
    """Writes a training of so many steps, `seconds_since` its last evaluation. Returns the file of the evaluation."""
    training, evaluation = folder / "optimization", folder / "evaluation"
    write_file(training / f"results/results-rl-{BASE}-D.txt", SAMPLED, 1000.0)
    write_file(training / f"results/results-rl-{TUNED}-D.txt", SAMPLED * (steps - 1), 9000.0)
    if interval is not None:
        write_file(training / "optimization_config.py", f"eval_interval = {interval}\n".encode(), 1000.0)
    write_file(evaluation / EVAL_RESULTS, EVALUATED * evaluations, 9000.0 - seconds_since)
    return write_file(evaluation / EVAL_OUTPUTS, b'[{"question": "?"}]', 9000.0 - seconds_since)


def scan_steps(folder: Path) -> dict[str, int | None]:
    """Name of each file of an evaluation -> its step."""
    files = scan.scan_folders([folder], ScanOptions()).files
    return {file.source.rpartition("/")[2]: file.step for file in files if "eval-" in file.source}


@pytest.mark.parametrize("steps", [100, 101, 107, 110])
def test_an_evaluation_that_is_scanned_later_has_its_own_step(steps: int, tmp_path: Path) -> None:
    seconds_since = -500.0 if steps == 100 else 500.0
    write_run(tmp_path, steps, 10, seconds_since)
    assert scan_steps(tmp_path) == {Path(EVAL_OUTPUTS).name: 100, Path(EVAL_RESULTS).name: 100}


def test_an_evaluation_that_is_not_finished_belongs_to_the_newest_step(tmp_path: Path) -> None:
    outputs = write_run(tmp_path, 110, 10, 500.0)
    write_file(outputs, b'[{"question": "?"}]', 9600.0)
    assert scan_steps(tmp_path)[outputs.name] == 110


@pytest.mark.parametrize(
    ("evaluations", "interval"),
    [(10, None), (10, 5), (2, 10), (0, 10), (10, 0)],  # no configuration, or one of another training
)
def test_an_evaluation_of_an_unknown_step_is_skipped_with_a_hint(
    evaluations: int, interval: int | None, tmp_path: Path
) -> None:
    write_run(tmp_path, 107, evaluations, 500.0, interval)
    assert scan_steps(tmp_path) == {}
    [reason] = [text for text in scan.scan_folders([tmp_path], ScanOptions()).skipped if "evaluations of CURE" in text]
    assert "folder named like step40" in reason
    moved = tmp_path / "step100"
    (tmp_path / "evaluation").rename(moved)
    assert set(scan_steps(tmp_path).values()) == {100}


def test_a_configuration_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    write_run(tmp_path, 107, 10, 500.0)
    (tmp_path / "optimization/optimization_config.py").write_text("eval_interval = (")
    assert scan_steps(tmp_path) == {}


def test_a_file_that_is_removed_during_the_scan_does_not_end_it(tmp_path: Path) -> None:
    outputs = write_run(tmp_path, 3, 1, 500.0)
    outputs.unlink()
    assert isinstance(cure.find_eval_step(outputs), int)
    assert isinstance(cure.find_cure_step(tmp_path / "optimization/temp_data/rl_code_data.json"), int)


def test_a_compressed_file_belongs_to_the_newest_step(tmp_path: Path) -> None:
    write_run(tmp_path, 3, 1, 500.0)
    path = tmp_path / f"optimization/temp_data/outputs-rl-{TUNED}-D.json.gz"
    write_file(path, gzip.compress(json.dumps([{"question": "?"}]).encode()), 9000.0)
    files = scan.scan_folders([tmp_path / "optimization"], ScanOptions()).files
    assert [file.step for file in files if file.source.endswith(".gz")] == [2]
