"""What our reader reads from a dump and what remains after our repair is what real verl loads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rolloutdeck.safe_pickle.rewrite.repair import ALWAYS_DROPPED_COLUMNS, MOVED_DROPPED_COLUMNS, drop_columns
from tests.rolloutdeck.safe_pickle.dumps import ALL, WITHOUT_SCORES, get_name
from tests.rolloutdeck.safe_pickle.summary import summarize_dump
from tests.trainers.interpreter import run_script

pytestmark = pytest.mark.trainers


def run_with_verl(script: str, *words: object) -> str:
    done = run_script(Path(__file__).with_name(script), words, cwd=Path.cwd(), env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_field_and_column_of_a_dump_is_what_verl_loads() -> None:
    loaded = json.loads(run_with_verl("load_with_verl.py", *ALL))
    assert {get_name(path): summarize_dump(path) for path in ALL} == {
        get_name(Path(path)): loaded[path] for path in loaded
    }


@pytest.fixture
def repaired_dumps(tmp_path: Path) -> dict[str, Path]:
    """The dump without its uid, and without all that another step would contradict."""
    paths = {"same": tmp_path / "same.dp", "moved": tmp_path / "moved.dp"}
    drop_columns(WITHOUT_SCORES, paths["same"], ALWAYS_DROPPED_COLUMNS)
    drop_columns(WITHOUT_SCORES, paths["moved"], ALWAYS_DROPPED_COLUMNS + MOVED_DROPPED_COLUMNS)
    return paths


def test_verl_loads_a_repaired_dump_with_all_its_other_values(repaired_dumps: dict[str, Path]) -> None:
    loaded = json.loads(run_with_verl("load_with_verl.py", WITHOUT_SCORES, *repaired_dumps.values()))
    for when, drop in (("same", ALWAYS_DROPPED_COLUMNS), ("moved", ALWAYS_DROPPED_COLUMNS + MOVED_DROPPED_COLUMNS)):
        full = dict(loaded[str(WITHOUT_SCORES)])
        full["columns"] = {name: result for name, result in full["columns"].items() if name not in drop}
        assert loaded[str(repaired_dumps[when])] == full


def test_verl_joins_a_repaired_dump_with_its_batch_but_not_the_original_one(repaired_dumps: dict[str, Path]) -> None:
    same, moved = repaired_dumps["same"], repaired_dumps["moved"]
    words = (f"same:{WITHOUT_SCORES}", f"moved:{same}", f"same:{same}", f"moved:{moved}")
    lines = run_with_verl("join_with_verl.py", *words).splitlines()
    assert [line.partition("` in ")[0] for line in lines] == [
        "`uid",
        "`data_source",
        "joined True True",
        "joined True True",
    ]
