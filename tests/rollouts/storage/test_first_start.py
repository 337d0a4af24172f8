"""The location of files at the first start, and a start with another database."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from rollouts.models import Project, Run, StorageLocation
from rollouts.storage import StorageRefusedError, check_data_folder, check_storage
from rollouts.storage.location import load_location
from tests.support import builders
from tests.support.stored import StoredPath

pytestmark = pytest.mark.django_db


def test_two_processes_that_start_at_the_same_time_are_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    other = load_location()
    monkeypatch.setattr(StorageLocation.objects, "first", lambda: None)  # it looked before the other row was there
    assert load_location().server == other.server
    assert StorageLocation.objects.count() == 1


@pytest.fixture
def orphan() -> StoredPath:
    """A file without a database row."""
    path = StoredPath("blobs/1/ab/abc")
    path.write_bytes(b"x")
    return path


@pytest.mark.disk
def test_another_database_does_not_get_the_files_of_a_data_folder(data_dir: Path, orphan: StoredPath, run: Run) -> None:
    check_storage()
    check_storage()
    assert (data_dir / "server").read_text() == f"{load_location().server} {connection.vendor}\n"
    StorageLocation.objects.update(server="other")  # another database, that has projects too
    with pytest.raises(StorageRefusedError, match=f"DATABASE_URL.*remove {data_dir / 'server'} and start again"):
        check_storage()
    Project.objects.all().delete()  # an empty one
    with pytest.raises(StorageRefusedError, match="DATABASE_URL.*restore a backup into a new folder"):
        check_storage()
    orphan.unlink()
    check_storage()
    assert (data_dir / "server").read_text().startswith(load_location().server)


@pytest.mark.disk
def test_a_data_folder_of_an_older_version_gets_its_mark_from_a_database_with_projects(
    data_dir: Path, orphan: StoredPath
) -> None:
    with pytest.raises(StorageRefusedError, match="has the files of another database"):
        check_storage()
    assert not (data_dir / "server").exists()
    builders.project("math")
    check_storage()
    assert (data_dir / "server").stat().st_mode & 0o777 == 0o644, "another user's server may read it"


@pytest.mark.disk
def test_a_downgrade_and_an_upgrade_keep_the_same_server(data_dir: Path, orphan: StoredPath, run: Run) -> None:
    check_storage()
    before = (data_dir / "server").read_text()
    StorageLocation.objects.all().delete()  # versions before 0.2 have no such row
    check_storage()
    assert (data_dir / "server").read_text() == before and before.startswith(load_location().server)


@pytest.mark.disk
def test_the_copy_in_sqlite_that_a_move_to_postgresql_leaves_is_another_database(
    data_dir: Path, orphan: StoredPath, run: Run
) -> None:
    check_storage()
    other = {"sqlite": "postgresql", "postgresql": "sqlite"}[connection.vendor]
    (data_dir / "server").write_text(f"{load_location().server} {other}\n")
    with pytest.raises(StorageRefusedError, match="has the files of another database"):
        check_storage()


@pytest.mark.disk
def test_a_command_refuses_the_files_of_another_database(
    data_dir: Path, orphan: StoredPath, capsys: pytest.CaptureFixture[str]
) -> None:
    check_data_folder()  # without a mark: a folder of an older version
    (data_dir / "server").write_text("of-another-server sqlite\n")
    with pytest.raises(SystemExit):
        call_command("fsck", "--repair", "--grace=0")
    assert "has the files of another database" in capsys.readouterr().err and orphan.exists()
