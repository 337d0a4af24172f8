"""Commands on the server's machine, as a shell sees them before Django has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rolloutdeck.support.programs import ROOT
from tests.support.server import free_port


def start_command(*words: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rolloutdeck", *map(str, words)]
    environ = {**os.environ, **variables}
    return subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", "nope"])
def test_a_restore_without_a_backup_says_so_and_creates_nothing(tmp_path: Path, name: str) -> None:
    backups = tmp_path / "backups"
    if name:
        (backups / "20261123T231500Z").mkdir(parents=True)
        (backups / "20261123T231500Z" / "manifest.json").touch()
    (tmp_path / "backups/20261124T231500Z.partial").mkdir(parents=True)
    (tmp_path / "backups/20261124T231500Z.partial/manifest.json").touch()
    words = ["--backup", name] if name else []
    process = start_command("restore", backups, "--data", tmp_path / "new", *words)
    _, error = process.communicate(timeout=600)
    says = f"no backup nope in {backups}. It has: 20261123T231500Z." if name else f"no finished backup in {backups}."
    assert process.returncode == 2 and f"There is {says}" in error
    assert not (tmp_path / "new").exists() and not (backups / "lock").exists()


def test_a_restore_from_no_folder_creates_nothing(tmp_path: Path) -> None:
    process = start_command("restore", tmp_path / "missing", "--data", tmp_path / "new")
    _, error = process.communicate(timeout=600)
    assert process.returncode == 2 and "no finished backup" in error
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("backup", "backups"), ("fsck",), ("forget", "--project", "p", "--prompt", "k")])
def test_ctrl_c_while_django_starts_ends_without_a_traceback(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "slow_settings.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    variables = {"DJANGO_SETTINGS_MODULE": "slow_settings", "PYTHONPATH": str(tmp_path)}
    process = start_command(*words, "--data", tmp_path, **variables)
    assert process.stdout and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (130, "")


def test_ctrl_c_while_the_command_is_imported_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    process = start_command("fsck", "--data", tmp_path, PYTHONPATH=str(tmp_path))
    assert process.stdout and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (130, "")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ROLLOUTDECK_PUBLIC_URL", "example.org", "Write the URL that users open"),
        ("ROLLOUTDECK_PUBLIC_URL", "https://", "Write the URL that users open"),
        ("REDIS_URL", "redis://127.0.0.1:1/0", "Redis does not answer"),
        ("DATABASE_URL", "postgres://127.0.0.1:1/none", "The database does not answer: "),
        ("ROLLOUTDECK_PASSWORD_SIGN_IN", "no", "ROLLOUTDECK_PASSWORD_SIGN_IN must be on or off, not 'no'."),
        ("ROLLOUTDECK_GROUP_ROLES", "foo", "ROLLOUTDECK_GROUP_ROLES: 'foo' is not group=project:role"),
    ],
)
def test_up_refuses_a_wrong_setting_in_one_sentence(tmp_path: Path, name: str, value: str, says: str) -> None:
    variables = {"REDIS_URL": "", name: value}
    process = start_command("up", "--data", tmp_path / "data", "--port", str(free_port()), **variables)
    output, error = process.communicate(timeout=600)
    assert process.returncode == 2 and says in output + error and "Traceback" not in output + error


def test_a_command_for_an_account_names_the_folder_without_data(tmp_path: Path) -> None:
    data = tmp_path / "new"
    data.mkdir()
    process = start_command("reset-second-factor", "admin", "--data", data)
    output, error = process.communicate(timeout=600)
    assert process.returncode == 1
    assert f"There is no data in {data}. Name the server's data folder with --data" in output + error
