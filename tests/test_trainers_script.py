"""`scripts/trainers.sh` with an interpreter that only pretends: what happens to the environment that is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "trainers.sh"
PYTHON = r"""#!/bin/sh
case "$*" in
  -VV) echo "Python $VERSION" ;;
  "-m venv "*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    printf '#!/bin/sh\n' >"$3/bin/uv" && chmod +x "$3/bin/uv" ;;
  *" download "*) exit "$INDEX" ;;
  *) exit "$INSTALL" ;;
esac
"""


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A finished environment. It has a file that is gone if it is built again."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    assert run(tmp_path / "env").returncode == 0
    (tmp_path / "env" / "as-it-was").touch()
    return tmp_path / "env"


def run(folder: Path, torch: str = "torch==1", **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "VERSION": "3.11", "INDEX": "0", "INSTALL": "0", **variables}
    command = [SCRIPT, folder, folder.parent / "python", torch]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


def test_it_is_built_again_for_another_python_or_torch(built: Path) -> None:
    assert run(built).returncode == 0 and (built / "as-it-was").exists()
    assert run(built, torch="torch==2").returncode == 0 and not (built / "as-it-was").exists()
    (built / "as-it-was").touch()
    assert run(built, torch="torch==2", VERSION="3.12").returncode == 0
    assert not (built / "as-it-was").exists()
    assert sorted(path.name for path in built.parent.iterdir()) == ["env", "python"]


def test_a_missing_interpreter_is_no_finished_environment(tmp_path: Path) -> None:
    done = run(tmp_path / "env")
    assert done.returncode == 0 and "their tests are skipped" in done.stdout
    assert run(tmp_path / "env", CI="true").returncode == 1


@pytest.mark.parametrize(
    ("variables", "status"),
    [({}, 0), ({"CI": "true"}, 1), ({"CI": "true", "INDEX": "1"}, 0)],
    ids=["by hand", "in CI", "in CI without an index"],
)
def test_one_that_cannot_be_built_leaves_the_older_one(built: Path, variables: dict[str, str], status: int) -> None:
    done = run(built, torch="torch==2", INSTALL="1", **variables)
    assert done.returncode == status, done.stderr
    assert "their tests run with the older ones" in done.stdout
    assert (built / "as-it-was").exists() and not built.with_name("env.older").exists()


def test_without_an_older_one_there_is_none(built: Path) -> None:
    other = built.with_name("other")
    assert "their tests are skipped" in run(other, INSTALL="1").stdout
    assert not other.exists()
