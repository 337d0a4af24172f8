"""`scripts/trainers.sh` with a fake interpreter: when it builds an environment and when it keeps the older one."""

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
def built_folder(tmp_path: Path) -> Path:
    """A finished environment. It has a file that is deleted if the environment is built again."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    assert run_script(tmp_path / "env").returncode == 0
    (tmp_path / "env" / "as-it-was").touch()
    return tmp_path / "env"


def run_script(folder: Path, torch: str = "torch==1", **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "VERSION": "3.11", "INDEX": "0", "INSTALL": "0", **variables}
    command = [SCRIPT, folder, folder.parent / "python", torch]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


def test_the_environment_is_built_again_for_another_python_or_torch(built_folder: Path) -> None:
    assert run_script(built_folder).returncode == 0 and (built_folder / "as-it-was").exists()
    assert run_script(built_folder, torch="torch==2").returncode == 0 and not (built_folder / "as-it-was").exists()
    (built_folder / "as-it-was").touch()
    assert run_script(built_folder, torch="torch==2", VERSION="3.12").returncode == 0
    assert not (built_folder / "as-it-was").exists()
    assert sorted(path.name for path in built_folder.parent.iterdir()) == ["env", "python"]


def test_a_missing_interpreter_is_no_finished_environment(tmp_path: Path) -> None:
    done = run_script(tmp_path / "env")
    assert done.returncode == 0 and "their tests are skipped" in done.stdout
    assert run_script(tmp_path / "env", CI="true").returncode == 1


@pytest.mark.parametrize(
    ("variables", "status"),
    [({}, 0), ({"CI": "true"}, 1), ({"CI": "true", "INDEX": "1"}, 0)],
    ids=["by hand", "in CI", "in CI without an index"],
)
def test_a_failed_build_keeps_the_older_environment(built_folder: Path, variables: dict[str, str], status: int) -> None:
    done = run_script(built_folder, torch="torch==2", INSTALL="1", **variables)
    assert done.returncode == status, done.stderr
    assert "their tests run with the older ones" in done.stdout
    assert (built_folder / "as-it-was").exists() and not built_folder.with_name("env.older").exists()


def test_a_failed_first_build_leaves_no_environment(built_folder: Path) -> None:
    other = built_folder.with_name("other")
    assert "their tests are skipped" in run_script(other, INSTALL="1").stdout
    assert not other.exists()
