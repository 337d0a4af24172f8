"""Functions of the storage with the data folder and with a bucket."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollouts.errors import StorageUnavailableError
from rollouts.models import AuditEntry, Project
from rollouts.storage import create_incoming_path
from rollouts.storage.access import (
    checkout_file,
    copy_file,
    delete_file,
    delete_files,
    fetch_file,
    find_file,
    list_files,
    list_folders,
    measure_files,
    put_file,
    touch_file,
    write_file,
)
from rollouts.storage.raw_dumps import confirm_raw_dump
from tests.support.stored import set_age

KEY = "blobs/1/ab/abc"
pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture(autouse=True, params=["disk", "bucket"])
def storage_url(request: pytest.FixtureRequest, data_dir: Path) -> str:
    return "" if request.param == "disk" else request.getfixturevalue("bucket")


def store_file(key: str = KEY, data: bytes = b"bytes") -> None:
    path = create_incoming_path()
    path.write_bytes(data)
    put_file(path, key)
    assert not path.exists(), "it was moved"


def test_a_file_is_stored_and_read() -> None:
    store_file()
    found = find_file(KEY)
    assert found and (found.key, found.bytes) == (KEY, 5) and abs(found.modified_at - time.time()) < 60
    assert fetch_file(KEY).read_bytes() == b"bytes"
    with checkout_file(KEY) as path:
        assert path.read_bytes() == b"bytes"


def test_a_missing_file_is_reported_as_such() -> None:
    assert find_file(KEY) is None
    with pytest.raises(FileNotFoundError):
        fetch_file(KEY)
    with pytest.raises(FileNotFoundError), checkout_file(KEY) as path:
        path.read_bytes()
    delete_file(KEY)
    delete_files("blobs/1/")
    touch_file(KEY)


@pytest.mark.parametrize("is_derived", [True, False])
def test_a_file_whose_writing_fails_does_not_appear(data_dir: Path, is_derived: bool) -> None:
    with pytest.raises(ZeroDivisionError), write_file(KEY, is_derived=is_derived) as path:
        path.write_bytes(b"half")
        raise ZeroDivisionError
    with write_file("blobs/1/ab/none", is_derived=is_derived):
        pass  # nothing was written
    assert list(list_files()) == []
    assert [path for path in data_dir.rglob("*") if path.is_file() and not path.parent.name.startswith(".l")] == []


def test_a_large_file_is_uploaded_in_parts() -> None:
    data = bytes(range(256)) * (20 << 12)  # 20 MB
    with write_file(KEY) as path:
        path.write_bytes(data)
    with checkout_file(KEY) as path:
        assert path.read_bytes() == data


def test_files_are_listed_measured_copied_and_deleted_by_prefix() -> None:
    for key in ("images/run-1/aa/aa1", "images/run-1/bb/bb1", "images/run-11/aa/aa1", "raw/1/cc/cc.zst"):
        store_file(key, key.encode())
    assert {file.key for file in list_files("images/run-1/")} == {"images/run-1/aa/aa1", "images/run-1/bb/bb1"}
    assert len(list(list_files())) == 4
    assert list_folders("images/") == {"run-1", "run-11"}
    names = ["images/run-1/aa/aa1", *(f"images/run-1/no/{number}" for number in range(30))]
    assert measure_files(names, "images/run-1/") == measure_files(names[:2], "images/") == {names[0]: len(names[0])}
    copy_file("images/run-1/aa/aa1", "images/project-1/aa/aa1")
    delete_files("images/run-1/")
    assert {file.key for file in list_files("images/")} == {"images/run-11/aa/aa1", "images/project-1/aa/aa1"}
    assert fetch_file("images/project-1/aa/aa1").read_bytes() == b"images/run-1/aa/aa1"


def test_touching_an_old_file_renews_its_time(storage_url: str) -> None:
    store_file()
    set_age(KEY, 5000)
    old = find_file(KEY)
    assert old and old.modified_at < time.time() - 4000
    assert touch_file(KEY)
    young = find_file(KEY)
    assert young and young.modified_at > time.time() - 60
    assert [file.key for file in list_files()] == [KEY] and fetch_file(KEY).read_bytes() == b"bytes"


def test_a_row_is_not_written_if_its_bytes_were_removed_meanwhile(project: Project) -> None:
    with pytest.raises(StorageUnavailableError, match="upload it again"), confirm_raw_dump(project.pk, "ab" * 32):
        AuditEntry.objects.create(project=project, verb="run.delete", subject="x")
    assert not AuditEntry.objects.exists()
