"""Other users of the machine can read nothing of the data folder, whatever its mode."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rolloutdeck.up.paths import create_data_folders, is_open_to_others


def test_existing_files_become_private_and_the_data_folder_keeps_its_mode(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    for name in ("raw", "bodies", "blobs", "logs"):
        (data / name).mkdir()
        (data / name).chmod(0o755)
    for name in ("db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm", "secret-key"):
        (data / name).touch()
        (data / name).chmod(0o644)
    (data / "images").symlink_to(tmp_path)
    create_data_folders(data)
    assert not [path.name for path in data.iterdir() if not path.is_symlink() and path.stat().st_mode & 0o077]
    assert is_open_to_others(data) and data.stat().st_mode & 0o777 == 0o755


def test_the_servers_settings_make_new_files_private() -> None:
    import dashboard.settings  # noqa: F401

    mask = os.umask(0o077)
    os.umask(mask)
    assert mask == 0o077


def test_processes_that_start_at_the_same_time_do_not_refuse_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(create_data_folders, [tmp_path / "data"] * 200))
    assert len(started) == 200
