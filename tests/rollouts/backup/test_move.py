"""The stored files of a running server move to a bucket and back, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from rollouts.backup import move_files
from rollouts.errors import StorageUnavailableError
from rollouts.integrity import CheckOptions, check_integrity
from rollouts.models import Run, StorageLocation
from rollouts.samples import load_bodies
from rollouts.storage import StorageRefusedError, check_storage, delete_file, location, open_store
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import generation, index_file, lines, list_samples, push
from tests.support.bucket_server import BUCKET, create_place

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.disk]


@pytest.fixture
def bucket_url(monkeypatch: pytest.MonkeyPatch, run: Run) -> str:
    monkeypatch.setattr(location, "KNOWN_SECONDS", 0.0)
    for step in (1, 2):
        index_file(run, lines(generation(f"{step}+1?", str(step + 1), step=step)), step)
    upload_files(register_artifact(run, 1, {"meta.json": b"{}"}), {"meta.json": b"{}"})
    return create_place()


def list_keys(url: str) -> set[str]:
    return {file.key for file in open_store(url).list_files("")}


def is_intact(run: Run) -> bool:
    texts = [body.response for body in load_bodies(list_samples(run)).values()]
    return len(texts) == len(list_samples(run)) and check_integrity(CheckOptions(grace=0)).problems == []


def test_files_move_to_a_bucket_and_back_while_the_server_writes(run: Run, bucket_url: str, settings: Any) -> None:
    before = list_keys("")
    first = move_files(bucket_url)
    assert (first.copied, first.is_finished, list_keys(bucket_url)) == (5, False, before)
    index_file(run, lines(generation("3+1?", "4", step=3)), 3)  # by a process with the old settings
    settings.STORAGE_URL = bucket_url
    index_file(run, lines(generation("4+1?", "5", step=4)), 4)  # by one with the new settings
    assert is_intact(run), "each reads from both places"
    settings.STORAGE_URL = ""
    assert is_intact(run)
    settings.STORAGE_URL = bucket_url
    second = move_files(bucket_url)
    assert (second.copied, second.is_finished, second.lost) == (2, True, [])
    assert move_files(bucket_url).copied == 0 and is_intact(run) and len(list_keys(bucket_url)) == 9
    check_storage()

    settings.STORAGE_URL = ""  # a process that was not restarted
    with pytest.raises(StorageUnavailableError, match="were moved to s3://"):
        push(run, b"{}", step=5)
    with pytest.raises(StorageRefusedError, match="are in s3://"):
        check_storage()

    for key in list_keys(""):
        (settings.DATA_DIR / key).unlink()
    settings.STORAGE_URL = bucket_url
    assert is_intact(run) and not move_files("").is_finished
    settings.STORAGE_URL = ""
    assert move_files("").is_finished and is_intact(run) and len(list_keys("")) == 9


def test_a_deletion_during_a_move_deletes_both_copies(run: Run, bucket_url: str, settings: Any) -> None:
    move_files(bucket_url)
    key = min(list_keys(bucket_url))
    delete_file(key)
    assert key not in list_keys("") | list_keys(bucket_url)
    settings.STORAGE_URL = bucket_url
    assert move_files(bucket_url).lost == [key], "its row is still there"


def test_a_bucket_that_cannot_be_used_or_belongs_to_another_server_is_refused(
    run: Run, bucket_url: str, settings: Any
) -> None:
    with pytest.raises(StorageRefusedError, match="there is no such bucket"):
        move_files("s3://no-such-bucket/x")
    with pytest.raises(StorageRefusedError, match="s3://BUCKET/PREFIX"):
        move_files("/mnt/bucket")
    move_files(bucket_url)
    with pytest.raises(StorageRefusedError, match="Finish that first"):
        move_files(f"s3://{BUCKET}/other")
    StorageLocation.objects.update(server="another", moving_to=None)
    with pytest.raises(StorageRefusedError, match="another server"):
        move_files(bucket_url)


def test_a_wrong_storage_url_is_noticed_at_the_start(run: Run, bucket_url: str, settings: Any) -> None:
    settings.STORAGE_URL = bucket_url  # the files are in the data folder
    with pytest.raises(StorageRefusedError, match="move the files"):
        check_storage()
    settings.STORAGE_URL = ""
    check_storage()
