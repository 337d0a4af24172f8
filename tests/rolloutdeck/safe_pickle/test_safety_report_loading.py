"""What we judge loadable is really loaded, by the real pickle and the real torch, in a process that is thrown away."""

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
from tests.rolloutdeck.safe_pickle import assembler as made
from tests.rolloutdeck.safe_pickle.hostile import CORPUS
from tests.rolloutdeck.safe_pickle.test_safety_report import DUMPS, OF_ROLL

SCRIPT = Path(__file__).with_name("unpickle.py")
SEEDS = {
    "proto": made.proto(columns=made.mapped(a=made.array(made.data(bytes(16)), 2), b=made.objects(made.text("x")))),
    "queue": made.archive(made.queued()),
    "roll": made.rollout(meta=made.mapped(global_step=made.number(3))),
}


def loaded(folder: Path, *files: Path, python: str = sys.executable) -> list[dict[str, Any]]:
    """Loads the files in `folder`, where a file that something made would be seen."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [python, str(SCRIPT), *map(str, files)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    result: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return result


def mutants(seed: bytes, count: int) -> list[bytes]:
    """The same bytes with one to three changed."""
    chance = random.Random(7)
    matches = []
    for _ in range(count):
        data = bytearray(seed)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice((chance.randrange(256), ord("R"), 0x93, ord("b"), 0))
        matches.append(bytes(data))
    return matches


class Session(NamedTuple):
    """One process that loaded everything, since it takes torch seconds to come up; `outcomes` by file."""

    folder: Path
    outcomes: dict[str, dict[str, Any]]

    def list_results(self, kind: str) -> list[dict[str, Any]]:
        return [first for path, first in self.outcomes.items() if Path(path).parent.name == kind]


def write_files(folder: Path, files: dict[str, bytes]) -> list[Path]:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def changed() -> dict[str, bytes]:
    """What random changes leave loadable."""
    result = {}
    for name, seed in SEEDS.items():
        for number, data in enumerate(mutants(seed, 1000)):
            if check_source_safety(ByteSource.from_bytes(data)).loadable:
                result[f"{name}-{number}"] = data
    return result


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    pytest.importorskip("torch", reason="torch really loads what we judge loadable")
    base = tmp_path_factory.mktemp("loading")
    built = [case.build() for case in CORPUS.values()]
    files = [path for path in (*DUMPS, *OF_ROLL) if safe.check_file_safety(path).loadable]
    files += write_files(base / "seeds", SEEDS)
    files += write_files(base / "changed", changed())
    files += write_files(base / "hostile", {str(number): data for number, data in enumerate(built) if b"PWNED" in data})
    (base / "cwd").mkdir()
    result = loaded(base / "cwd", *files)
    return Session(base, {item["file"]: item for item in result})


def test_the_canary_sees_what_a_hostile_file_runs(session: Session) -> None:
    ran = [item for item in session.list_results("hostile") if item["ran"]]
    assert len(ran) > 15
    assert {event for item in ran for event in item["ran"]} == {"os.system", "subprocess.Popen"}


def test_no_file_that_really_runs_something_was_judged_loadable(session: Session) -> None:
    ran = [item["file"] for item in session.outcomes.values() if item["ran"]]
    assert {Path(path).parent.name for path in ran} == {"hostile"}
    assert not any(safe.check_file_safety(path).loadable for path in ran)


def test_every_dump_that_we_judged_loadable_loads_and_nothing_runs(session: Session) -> None:
    matches = [session.outcomes[str(path)] for path in (*DUMPS, *OF_ROLL)] + session.list_results("seeds")
    assert len(matches) == len(DUMPS) + len(OF_ROLL) + len(SEEDS)
    assert [item for item in matches if item["error"] or item["ran"]] == []


def test_nothing_runs_in_what_random_changes_leave_loadable(session: Session) -> None:
    result = session.list_results("changed")
    assert len(result) > 100
    assert [item for item in result if item["ran"]] == []


def test_loading_all_of_them_left_no_file_behind(session: Session) -> None:
    assert list((session.folder / "cwd").iterdir()) == []
