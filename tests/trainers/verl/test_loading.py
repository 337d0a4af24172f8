"""What the plug-in builds of a dump is what real verl would have unpickled, and nothing is unpickled for it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.rolloutdeck.safe_pickle.dumps import ALL, HOSTILE
from tests.trainers.interpreter import run_script
from tests.trainers.verl.process import ROOT

pytestmark = pytest.mark.trainers

WRITER = ROOT / "tests/rolloutdeck/safe_pickle/write_batches.py"
FORTRAN = "refused: its column 'fortran': it has a value that can't be rebuilt: numpy array in Fortran order"

NOTED = "refused: the column 'note' is among its tensors, where verl writes none"


def run_with_verl(script: Path, *words: object, cwd: Path) -> str:
    values = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_script(script, words, cwd=cwd, env=values)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def build_dumps(paths: Iterable[Path], cwd: Path) -> dict[str, str]:
    result = json.loads(run_with_verl(Path(__file__).with_name("build_with_verl.py"), *paths, cwd=cwd).splitlines()[-1])
    return {str(path): decision for path, decision in result.items()}


def test_a_dump_is_built_as_verl_would_have_unpickled_it(tmp_path: Path) -> None:
    assert build_dumps(ALL, tmp_path) == {str(path): "equal" for path in ALL}


def test_every_type_of_value_is_built_or_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    run_with_verl(WRITER, folder, cwd=tmp_path)
    result = {Path(path).name: decision for path, decision in build_dumps(sorted(folder.iterdir()), tmp_path).items()}
    assert {result.pop(name) for name in ("torch.dp", "numpy.dp")} == {FORTRAN}
    assert result.pop("noted.dp") == NOTED
    assert len(result) == 8
    assert set(result.values()) == {"equal"}, result


def test_a_hostile_file_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    assert build_dumps([HOSTILE], tmp_path) == {str(HOSTILE): "refused: it contains a dict, not verl's DataProto"}
    assert list(tmp_path.iterdir()) == []
