"""Tests and scripts never use the data folder, the bucket or the database of the person who runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutdeck.up import paths
from tests.support.real_servers import forget_real_servers

ROOT = Path(__file__).parent.parent
READ_SETTINGS = "import runpy, sys; print(runpy.run_path(sys.argv[1])['STORAGE_URL'])"


def test_the_only_database_that_stays_is_that_of_the_tests() -> None:
    environ = {"DATABASE_URL": "postgres://real", "REDIS_URL": "redis://real", "ROLLOUTDECK_STORAGE": "s3://real"}
    forget_real_servers(environ)
    assert environ == {"DATABASE_URL": "", "DJANGO_READ_DOT_ENV_FILE": "off"}
    environ["TEST_DATABASE_URL"] = "postgres://of-the-tests"
    forget_real_servers(environ)
    assert environ["DATABASE_URL"] == "postgres://of-the-tests"


@pytest.mark.parametrize(("switch", "storage"), [("", "s3://real"), ("off", "")])
def test_the_settings_read_a_dotenv_file_unless_that_is_off(tmp_path: Path, switch: str, storage: str) -> None:
    settings = tmp_path / "dashboard" / "settings.py"
    settings.parent.mkdir()
    shutil.copy(ROOT / "dashboard" / "settings.py", settings)
    (tmp_path / ".env").write_text("ROLLOUTDECK_STORAGE=s3://real\n")
    names = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
    env = {**names, "ROLLOUTDECK_DATA": str(tmp_path / "data"), "DJANGO_READ_DOT_ENV_FILE": switch}
    command = [sys.executable, "-c", READ_SETTINGS, str(settings)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == storage


@pytest.mark.parametrize(("switch", "read"), [("", "from the file"), ("off", None)])
def test_up_reads_a_dotenv_file_unless_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, read: str | None
) -> None:
    (tmp_path / ".env").write_text("DOTENV_OF_THE_TEST=from the file\n")
    monkeypatch.setattr(paths, "find_server_folder", lambda: tmp_path)
    monkeypatch.setenv("DJANGO_READ_DOT_ENV_FILE", switch)
    monkeypatch.setenv("DOTENV_OF_THE_TEST", "removed after the test")
    monkeypatch.delenv("DOTENV_OF_THE_TEST")
    paths.read_dotenv()
    assert os.environ.get("DOTENV_OF_THE_TEST") == read
