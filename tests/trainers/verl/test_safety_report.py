"""Real verl loads the files that our report says are loadable, in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rolloutdeck import safe_pickle as safe
from tests.rolloutdeck.safe_pickle.test_safety_report import DUMPS
from tests.rolloutdeck.safe_pickle.test_safety_report_loading import SCRIPT, load_in_subprocess
from tests.trainers.interpreter import require_python

pytestmark = pytest.mark.trainers


def test_real_verl_loads_files_that_are_reported_as_loadable_and_runs_no_code(tmp_path: Path) -> None:
    files = [path for path in DUMPS if safe.check_file_safety(path).loadable and "numpy_ser" not in str(path)]
    result = load_in_subprocess(tmp_path, *files, python=require_python())
    assert [item for item in result if item["error"] or item["ran"]] == []


def test_batches_of_every_shape_that_real_verl_writes_are_loadable_and_load(tmp_path: Path) -> None:
    script = SCRIPT.with_name("write_batches.py")
    subprocess.run([require_python(), str(script), str(tmp_path)], check=True, capture_output=True, timeout=600)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 11
    assert {path.name: safe.check_file_safety(path).reasons for path in files} == {path.name: () for path in files}
    result = load_in_subprocess(
        tmp_path, *(path for path in files if "numpy" not in path.name), python=require_python()
    )
    assert [item for item in result if item["error"] or item["ran"]] == []
