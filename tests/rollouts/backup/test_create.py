"""A backup has the database of one moment and every file that it refers to."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from rollouts.backup import BackupError, create_backup, database, iterate_backups, lock_destination
from rollouts.backup.create import choose_name, remove_old_backups
from rollouts.backup.manifest import compute_sha256
from rollouts.backup.restore import select_backup
from rollouts.maintenance import compaction, sweep
from rollouts.models import Run
from rollouts.storage import deletion_lock
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import generation, index_file, lines
from tests.support.patching import remove_locks
from tests.support.stored import StoredPath, list_stored

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def run_with_files(run: Run) -> Run:
    for step in range(1, 4):
        index_file(run, lines(generation(f"{step}+1?", str(step + 1), step=step)), step)
    upload_files(register_artifact(run, 1, {"meta.json": b"{}"}), {"meta.json": b"{}"})
    return run


def list_pool_files(destination: Path) -> dict[str, Path]:
    pool = destination / "files"
    return {path.relative_to(pool).as_posix(): path for path in pool.rglob("*") if path.is_file()}


def test_a_backup_has_each_referenced_file_with_its_hash(
    run_with_files: Run, destination: Path, data_dir: Path
) -> None:
    MigrationRecorder(connection).record_applied("rollouts", "0001_initial")  # tests create tables without migrations
    manifest = create_backup(destination).manifest
    kinds = sorted(name.split("/")[0] for name in manifest.files)
    assert kinds == ["blobs", *["bodies"] * 3, *["raw"] * 3]
    for name, path in list_pool_files(destination).items():
        assert manifest.files[name] == (path.stat().st_size, compute_sha256(path))
        assert path.read_bytes() == StoredPath(name).read_bytes()
    assert manifest.rows["rollouts_sample"] == 3 and "django_session" not in manifest.rows
    assert "rollouts.0001_initial" in manifest.migrations and manifest.missing == []


def test_a_second_backup_copies_only_new_files(run_with_files: Run, destination: Path) -> None:
    assert create_backup(destination).copied == 7
    before = {name: path.stat().st_mtime_ns for name, path in list_pool_files(destination).items()}
    index_file(run_with_files, lines(generation("9+1?", "10", step=9)), 9)
    assert create_backup(destination).copied == 2
    after = {name: path.stat().st_mtime_ns for name, path in list_pool_files(destination).items()}
    assert before.items() <= after.items() and len(after) == 9


def test_old_backups_are_removed_with_the_files_that_only_they_have(run_with_files: Run, destination: Path) -> None:
    first = create_backup(destination).manifest.name
    Run.objects.filter(pk=run_with_files.pk).update(deleted_at=timezone.now() - timedelta(days=8))
    sweep.empty_trash()
    second = create_backup(destination).manifest.name
    assert len(list_pool_files(destination)) == 7
    result = create_backup(destination, keep=2)
    assert result.removed == [first]
    assert [manifest.name for manifest in iterate_backups(destination)] == [second, result.manifest.name]
    assert list_pool_files(destination) == {}


def test_backups_of_one_second_have_names_in_order(run_with_files: Run, destination: Path) -> None:
    names = [create_backup(destination).manifest.name for _ in range(3)]
    assert names == sorted(names) and len(set(names)) == 3


def test_everything_in_a_backup_is_private(run_with_files: Run, destination: Path) -> None:
    old = os.umask(0o077)  # the server's
    try:
        create_backup(destination)
    finally:
        os.umask(old)
    paths = [destination, *destination.rglob("*")]
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_a_killed_backup_is_not_listed_and_its_files_are_used_again(run_with_files: Run, destination: Path) -> None:
    class KilledError(BaseException):
        pass

    def kill(done: int, total: int, _: int) -> None:
        if done == 5:
            raise KilledError

    with pytest.raises(KilledError):
        create_backup(destination, progress=kill)
    assert list(iterate_backups(destination)) == [] and len(list_pool_files(destination)) == 5
    assert create_backup(destination).copied == 2
    assert list(destination.glob("*.partial")) == []


def test_a_file_that_the_server_has_lost_is_listed_as_missing(
    run_with_files: Run, destination: Path, data_dir: Path
) -> None:
    lost = list_stored("bodies/")[0]
    lost.unlink()
    assert create_backup(destination).manifest.missing == [lost.key]


def test_nothing_is_removed_while_a_backup_runs(run_with_files: Run, destination: Path, data_dir: Path) -> None:
    Run.objects.filter(pk=run_with_files.pk).update(deleted_at=timezone.now() - timedelta(days=8))
    orphan = StoredPath("bodies/orphan.parquet")
    orphan.write_bytes(b"x")
    orphan.set_age(7200)
    removed = []

    def remove(*_: int) -> None:
        removed.append(sweep.empty_trash() + compaction.delete_orphan_bodies() + sweep.delete_orphan_blobs())

    manifest = create_backup(destination, progress=remove).manifest
    assert manifest.missing == [] and set(removed) == {0} and orphan.exists()
    assert sweep.empty_trash() == 1 and compaction.delete_orphan_bodies() == 1


def test_a_backup_waits_until_a_removal_has_ended(run_with_files: Run, destination: Path) -> None:
    done: list[int] = []
    with deletion_lock.allow_deletion() as allowed:
        thread = threading.Thread(target=lambda: done.append(wait_for_lock()))
        thread.start()
        time.sleep(0.3)
        assert allowed and done == []
    thread.join(10)
    assert done == [1]


def wait_for_lock() -> int:
    with deletion_lock.forbid_deletion():
        return 1


def test_a_backup_into_the_data_folder_is_refused(run_with_files: Run, data_dir: Path) -> None:
    with pytest.raises(BackupError, match="inside the data folder"):
        create_backup(data_dir / "backups")


def test_two_backups_into_one_folder_do_not_run_at_once(run_with_files: Run, destination: Path) -> None:
    def start_another(*_: int) -> None:
        with pytest.raises(BackupError, match="Another command uses"):
            create_backup(destination)

    create_backup(destination, progress=start_another)


def test_backups_and_removals_work_on_a_file_system_without_locks(
    run_with_files: Run, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_locks(monkeypatch)
    assert create_backup(destination).copied == 7
    with deletion_lock.allow_deletion() as allowed:
        assert allowed


def test_a_backup_in_a_read_only_folder_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse_writing(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse_writing)
    with (
        lock_destination(tmp_path),
        pytest.raises(BackupError, match="Another command uses"),
        lock_destination(tmp_path),
    ):
        pass
    (tmp_path / "lock").touch()
    with lock_destination(tmp_path):
        pass


def test_a_manifest_of_a_newer_version_is_refused(run_with_files: Run, destination: Path) -> None:
    name = create_backup(destination).manifest.name
    path = destination / name / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2, "version": "9.1"}))
    with pytest.raises(BackupError, match=r"made by Rolloutdeck 9\.1, which is newer"):
        list(iterate_backups(destination))


def test_names_of_backups_are_found_without_reading_all_manifests(run_with_files: Run, destination: Path) -> None:
    name = create_backup(destination).manifest.name
    for other in ("20000101T000000Z", "99990101T000000Z"):
        (destination / other).mkdir()
        (destination / other / "manifest.json").write_text("as long as the memory")
    assert choose_name(destination, datetime.now(UTC)) == "99990101T000000Z-002"
    assert select_backup(destination, name).name == name
    assert remove_old_backups(destination, keep=2) == ["20000101T000000Z"]
    assert next(iterate_backups(destination)).name == name


@pytest.mark.one_database
def test_the_copy_of_sqlite_is_of_one_moment_while_another_process_writes(tmp_path: Path) -> None:
    source = tmp_path / "source.sqlite3"
    writer = sqlite3.connect(source, isolation_level=None, check_same_thread=False)
    writer.executescript("PRAGMA journal_mode=WAL; CREATE TABLE a (n); CREATE TABLE b (n, filler)")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with_filler = (number, "x" * 20_000)
            writer.execute("BEGIN")
            writer.execute("INSERT INTO a VALUES (?)", (number,))
            writer.execute("INSERT INTO b VALUES (?, ?)", with_filler)
            writer.execute("COMMIT")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            time.sleep(0.1)
            target = tmp_path / f"copy{number}.sqlite3"
            database.copy_sqlite_file(source, target)
            copy = sqlite3.connect(target)
            counts = [copy.execute(f"SELECT count(*), max(n) FROM {table}").fetchone() for table in "ab"]
            assert counts[0] == counts[1] and counts[0][0] == counts[0][1] > 0
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            copy.close()
    finally:
        stop.set()
        thread.join()
        writer.close()


def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "db.sqlite3"
    with sqlite3.connect(source) as made:
        made.execute("CREATE TABLE text AS SELECT zeroblob(100000) AS body")

    def connect(path: object, **options: Any) -> sqlite3.Connection:
        opened = sqlite3.Connection(path, **options)  # type: ignore[arg-type]
        if "mode=rw" not in str(path):
            opened.execute("PRAGMA max_page_count=1")  # as on a full disk
        return opened

    monkeypatch.setattr(database.sqlite3, "connect", connect)
    with pytest.raises(BackupError, match="cannot be copied to .*: database or disk is full"):
        database.copy_sqlite_file(source, tmp_path / "copy.sqlite3")
