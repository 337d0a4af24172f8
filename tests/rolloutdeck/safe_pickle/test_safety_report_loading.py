"""Files that the safety report calls loadable are loaded by real pickle and torch in another process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rolloutdeck import safe_pickle as safe
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle.hostile import CORPUS
from tests.rolloutdeck.safe_pickle.test_safety_report import DUMPS, ROLL_BATCHES

SCRIPT = Path(__file__).with_name("unpickle.py")
SEEDS = {
    "proto": asm.proto(columns=asm.dict_(a=asm.array(asm.bytes_(bytes(16)), 2), b=asm.object_array(asm.text("x")))),
    "queue": asm.archive(asm.queue_members()),
    "roll": asm.roll_batch(meta=asm.dict_(global_step=asm.number(3))),
}


def load_in_subprocess(folder: Path, *files: Path, python: str = sys.executable) -> list[dict[str, Any]]:
    """Loads the files with `folder` as the working directory, where a file that a hostile one creates is seen."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [python, str(SCRIPT), *map(str, files)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    result: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return result


def build_mutants(seed: bytes, count: int) -> list[bytes]:
    """Copies of the seed with one to three changed bytes."""
    chance = random.Random(7)
    matches = []
    for _ in range(count):
        data = bytearray(seed)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), ord("R"), 0x93, ord("b"), 0))
        matches.append(bytes(data))
    return matches


class LoadingSession(NamedTuple):
    """The results of one process that loaded all files, since torch needs seconds to start; `outcomes` by file."""

    folder: Path
    outcomes: dict[str, dict[str, Any]]

    def list_results(self, kind: str) -> list[dict[str, Any]]:
        return [outcome for path, outcome in self.outcomes.items() if Path(path).parent.name == kind]


def write_files(folder: Path, files: dict[str, bytes]) -> list[Path]:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def build_loadable_mutants() -> dict[str, bytes]:
    """Files with random changes that are still called loadable."""
    result = {}
    for name, seed in SEEDS.items():
        for number, data in enumerate(build_mutants(seed, 1000)):
            if check_source_safety(ByteSource.from_bytes(data)).loadable:
                result[f"{name}-{number}"] = data
    return result


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> LoadingSession:
    pytest.importorskip("torch", reason="torch loads the files that are called loadable")
    base = tmp_path_factory.mktemp("loading")
    built = [case.build() for case in CORPUS.values()]
    files = [path for path in (*DUMPS, *ROLL_BATCHES) if safe.check_file_safety(path).loadable]
    files += write_files(base / "seeds", SEEDS)
    files += write_files(base / "changed", build_loadable_mutants())
    files += write_files(base / "hostile", {str(number): data for number, data in enumerate(built) if b"PWNED" in data})
    (base / "cwd").mkdir()
    result = load_in_subprocess(base / "cwd", *files)
    return LoadingSession(base, {item["file"]: item for item in result})


def test_the_audit_hook_records_what_a_hostile_file_runs(session: LoadingSession) -> None:
    ran = [item for item in session.list_results("hostile") if item["ran"]]
    assert len(ran) > 15
    assert {event for item in ran for event in item["ran"]} == {"os.system", "subprocess.Popen"}


def test_no_file_that_really_runs_something_is_reported_as_loadable(session: LoadingSession) -> None:
    ran = [item["file"] for item in session.outcomes.values() if item["ran"]]
    assert {Path(path).parent.name for path in ran} == {"hostile"}
    assert not any(safe.check_file_safety(path).loadable for path in ran)


def test_every_dump_that_is_reported_as_loadable_loads_and_nothing_runs(session: LoadingSession) -> None:
    matches = [session.outcomes[str(path)] for path in (*DUMPS, *ROLL_BATCHES)] + session.list_results("seeds")
    assert len(matches) == len(DUMPS) + len(ROLL_BATCHES) + len(SEEDS)
    assert [item for item in matches if item["error"] or item["ran"]] == []


def test_nothing_runs_in_what_random_changes_leave_loadable(session: LoadingSession) -> None:
    result = session.list_results("changed")
    assert len(result) > 100
    assert [item for item in result if item["ran"]] == []


def test_loading_all_files_leaves_no_new_file(session: LoadingSession) -> None:
    assert list((session.folder / "cwd").iterdir()) == []
