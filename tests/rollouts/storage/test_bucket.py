"""Storage in a bucket: the cache on disk, failing connections, and a second server."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from django.test import Client

from dashboard.api.views import health
from rollouts.errors import StorageUnavailableError
from rollouts.indexing import index_dump
from rollouts.models import Dump, Run, StorageLocation
from rollouts.samples import load_bodies
from rollouts.storage import BucketError, StorageRefusedError, access, check_storage, fetch_file, has_file
from rollouts.storage import bucket as bucket_module
from rollouts.storage.access import delete_file
from rollouts.storage.cache import FileCache
from tests.rollouts.support.push import generation, index_file, lines, list_samples, push
from tests.support.patching import remove_locks
from tests.support.stored import StoredPath, raw_path

pytestmark = [pytest.mark.django_db, pytest.mark.disk]
KEY = "blobs/1/ab/abc"


def set_file_age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def add_to_cache(cache: FileCache, key: str, seconds: float) -> Path:
    def download(path: Path) -> None:
        path.write_bytes(bytes(100))

    path = cache.fetch(key, download)
    set_file_age(path, seconds)
    return path


def test_files_that_were_unused_for_longest_are_removed_from_the_cache(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 250)
    oldest, old, fresh = (
        add_to_cache(cache, "bodies/1", 3000),
        add_to_cache(cache, "bodies/2", 2000),
        add_to_cache(cache, "bodies/3", 10),
    )
    assert cache.find("bodies/1") == oldest, "now the second one is older"
    assert cache.remove_unused() == 1
    assert (oldest.exists(), old.exists(), fresh.exists()) == (True, False, True)
    cache.max_bytes = 1
    assert cache.remove_unused() == 0, "both may be about to be opened"
    cache.max_bytes = 250
    set_file_age(oldest, 25 * 3600)
    assert cache.remove_unused() == 1, "nobody used it for a day"


def test_a_file_is_downloaded_once_by_many_readers_and_again_after_a_failure(tmp_path: Path) -> None:
    cache, downloads = FileCache(tmp_path, 1 << 20), []

    def download(path: Path) -> None:
        downloads.append(path)
        path.write_bytes(b"half")
        time.sleep(0.05)
        if len(downloads) == 1:
            raise BucketError(5, "the connection was lost")

    with pytest.raises(BucketError):
        cache.fetch(KEY, download)
    assert cache.find(KEY) is None
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: cache.fetch(KEY, download), range(8)))
    assert len(downloads) == 2 and len(paths) == 1 and not list((tmp_path / ".new").iterdir())


def test_a_file_is_downloaded_to_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_locks(monkeypatch)
    assert add_to_cache(FileCache(tmp_path, 1 << 20), KEY, 0).read_bytes() == bytes(100)


def test_samples_are_read_from_the_bucket_when_the_cache_is_empty(run: Run, bucket: str, data_dir: Path) -> None:
    index_file(run, lines(generation("1+1?", "2")), 1)
    for path in [path for path in (data_dir / "cache").rglob("*") if path.is_file()]:
        path.unlink()
    assert [body.response for body in load_bodies(list_samples(run)).values()] == ["2"]


@pytest.fixture
def unreachable_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bucket whose endpoint does not answer."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(bucket_module, "RETRIES", 0)
    bucket_module.open_client.cache_clear()
    yield
    bucket_module.open_client.cache_clear()


def test_an_upload_waits_for_a_bucket_that_does_not_answer(run: Run, unreachable_bucket: None) -> None:
    with pytest.raises(StorageUnavailableError, match="no answer"):
        push(run, lines(generation()))
    assert Dump.objects.count() == 0


def test_a_worker_tries_again_when_the_bucket_did_not_answer(
    run: Run, bucket: str, data_dir: Path, request: pytest.FixtureRequest
) -> None:
    dump = push(run, lines(generation()))
    raw_copy = data_dir / "cache" / raw_path(run.project_id, dump.sha256).key
    raw_copy.unlink()
    request.getfixturevalue("unreachable_bucket")
    with pytest.raises(StorageUnavailableError):
        index_dump(dump.pk)
    dump.refresh_from_db()
    assert dump.state == Dump.State.RECEIVED and "no answer" in dump.message


def test_the_start_and_readyz_say_that_the_bucket_does_not_answer(
    run: Run, bucket: str, client: Client, request: pytest.FixtureRequest
) -> None:
    check_storage()
    assert health.write_probe_file() == "ok"
    request.getfixturevalue("unreachable_bucket")
    with pytest.raises(StorageRefusedError, match="no answer"):
        check_storage()
    assert "does not answer" in health.write_probe_file()


def test_a_wrong_setting_of_the_first_start_can_be_corrected(bucket: str, settings: Any) -> None:
    settings.STORAGE_URL = "s3://no-such-bucket/x"
    with pytest.raises(StorageRefusedError, match="no such bucket"):
        check_storage()
    settings.STORAGE_URL = bucket
    check_storage()
    assert StorageLocation.objects.get().url == bucket
    settings.STORAGE_URL = ""
    check_storage()  # nothing was stored yet
    assert StorageLocation.objects.get().url == ""


def test_missing_credentials_are_named(bucket: str, unreachable_bucket: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StorageRefusedError, match="AWS_ACCESS_KEY_ID is not set"):
        check_storage()


def test_a_request_to_a_server_that_never_answers_fails(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections, and that is all
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(bucket_module, "QUICK_SECONDS", 0.3)
        monkeypatch.setattr(bucket_module, "RETRIES", 0)
        bucket_module.open_client.cache_clear()
        with pytest.raises(BucketError, match="no answer"):
            has_file(KEY)
    bucket_module.open_client.cache_clear()


def test_a_second_server_cannot_use_the_same_place(run: Run, bucket: str) -> None:
    check_storage()
    StorageLocation.objects.all().delete()  # another database
    with pytest.raises(StorageRefusedError, match="has the files of another server"):
        check_storage()


def test_a_connection_that_is_cut_in_the_middle_leaves_no_file(
    bucket: str, data_dir: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoredPath(KEY).write_bytes(bytes(4 << 20))
    for path in [path for path in (data_dir / "cache").rglob("*") if path.is_file()]:
        path.unlink()
    head = ["HTTP/1.1 200 OK", 'ETag: "x"', "Last-Modified: Fri, 27 Nov 2026 10:00:00 GMT", "Content-Length: 4194304"]
    answer = "\r\n".join([*head, "", ""]).encode()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=cut_connections, args=(server, answer), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(bucket_module, "RETRIES", 0)
        bucket_module.open_client.cache_clear()
        with pytest.raises(BucketError):
            fetch_file(KEY)
    assert not (data_dir / "cache" / KEY).exists()
    monkeypatch.undo()
    bucket_module.open_client.cache_clear()
    settings.DATA_DIR, settings.STORAGE_URL = data_dir, bucket
    assert fetch_file(KEY).stat().st_size == 4 << 20


def test_a_large_file_is_downloaded_in_parts(
    bucket: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * (80 << 10)  # 20 MB
    StoredPath(KEY).write_bytes(content)
    get, options_of_requests = obstore.get, []

    def record_get(*args: Any, options: Any) -> Any:
        options_of_requests.append(options)
        return get(*args, options=options)

    monkeypatch.setattr(obstore, "get", record_get)
    monkeypatch.setattr(bucket_module, "DOWNLOAD_PART_BYTES", 9 << 20)
    with access.checkout_file(KEY) as path:
        assert path.read_bytes() == content
    first, *others = options_of_requests
    assert first == {} and len(others) == 1 and others[0]["range"][1] == len(content)
    StoredPath(KEY).write_bytes(b"other")
    monkeypatch.setattr(obstore, "get", lambda *args, options: get(*args, options=options | {"if_match": '"gone"'}))
    with pytest.raises(BucketError), access.checkout_file(KEY):
        pass


def cut_connections(server: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.recv(65536)
        connection.sendall(answer + bytes(100_000))
        connection.close()


def test_a_deleted_file_is_removed_from_the_cache_too(bucket: str, data_dir: Path) -> None:
    StoredPath(KEY).write_bytes(b"x")
    assert isinstance(fetch_file(KEY), Path) and (data_dir / "cache" / KEY).exists()
    delete_file(KEY)
    assert not has_file(KEY) and not (data_dir / "cache" / KEY).exists()
