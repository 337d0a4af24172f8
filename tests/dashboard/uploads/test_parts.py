"""Uploads in parts, of large bodies."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard.uploads import app
from dashboard.uploads.receive import LockedPartialUpload, PartialUpload
from rollouts.models import Dump, Run
from rollouts.storage import RESERVED_BYTES, access, list_shared_uploads
from tests.dashboard.support.asgi_server import Site
from tests.dashboard.uploads.support import BODY, compute_sha256, list_incoming_files, put_dump
from tests.support.patching import remove_locks

pytestmark = pytest.mark.django_db(transaction=True)


def split_parts(body: bytes, size: int) -> Iterator[tuple[bytes, str]]:
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        yield piece, f"bytes {start}-{start + len(piece) - 1}/{len(body)}"


def test_parts_become_one_dump_and_the_server_reports_the_received_bytes(
    site: Site, authorization: str, run: Run, data_dir: Path
) -> None:
    body = os.urandom(2_500_000)
    parts = list(split_parts(body, 1_000_000))
    offset_answer = put_dump(site, authorization, b"", of=body, Content_Range=f"bytes */{len(body)}")
    assert (offset_answer.status, offset_answer.json) == (202, {"received": 0})
    first = put_dump(site, authorization, parts[0][0], of=body, Content_Range=parts[0][1])
    assert (first.status, first.json) == (202, {"received": 1_000_000})
    put_dump(site, authorization, parts[1][0], of=body, Content_Range=parts[1][1])
    offset_answer = put_dump(site, authorization, b"", of=body, Content_Range=f"bytes */{len(body)}")
    assert offset_answer.json == {"received": 2_000_000}
    last = put_dump(site, authorization, parts[2][0], of=body, Content_Range=parts[2][1])
    assert (last.status, last.json) == (201, {"sha256": compute_sha256(body), "bytes": len(body)})
    assert list_incoming_files(data_dir) == []


def test_parts_are_written_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_locks(monkeypatch)
    locked = LockedPartialUpload(PartialUpload(tmp_path / "part", 2))
    locked.file.write(b"x")
    locked.saved = True
    locked.close()
    assert (tmp_path / "part").read_bytes() == b"x"


def test_a_part_that_is_out_of_place_changes_nothing(site: Site, authorization: str, run: Run) -> None:
    body = os.urandom(300)
    parts = list(split_parts(body, 100))
    put_dump(site, authorization, parts[0][0], of=body, Content_Range=parts[0][1])
    for piece, position in (parts[0], parts[2]):
        assert put_dump(site, authorization, piece, of=body, Content_Range=position).json == {"received": 100}
    for piece, position in parts[1:]:
        last = put_dump(site, authorization, piece, of=body, Content_Range=position)
    assert last.status == 201


def test_parts_with_the_wrong_checksum_are_deleted(site: Site, authorization: str, run: Run, data_dir: Path) -> None:
    body, other = os.urandom(200), os.urandom(200)
    parts = list(split_parts(other, 100))
    put_dump(site, authorization, parts[0][0], of=body, Content_Range=parts[0][1])
    assert put_dump(site, authorization, parts[1][0], of=body, Content_Range=parts[1][1]).status == 409
    assert list_incoming_files(data_dir) == []


def test_an_upload_that_met_a_full_disk_is_completed_by_an_offset_request(
    site: Site, authorization: str, run: Run, monkeypatch: Any
) -> None:
    body = os.urandom(200)
    real = access.write_file

    def fail(key: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(access, "write_file", fail)
    answers = [
        put_dump(site, authorization, piece, of=body, Content_Range=position)
        for piece, position in split_parts(body, 100)
    ]
    assert [answer.status for answer in answers] == [202, 507]
    monkeypatch.setattr(access, "write_file", real)
    assert put_dump(site, authorization, b"", of=body, Content_Range="bytes */200").status == 201


@pytest.mark.disk
def test_parts_may_reach_different_machines_if_they_share_a_bucket(
    site: Site, authorization: str, run: Run, bucket: str, settings: Any, tmp_path: Path
) -> None:
    body = os.urandom(350)
    pieces = list(split_parts(body, 100))
    for number, (piece, position) in enumerate(pieces):
        settings.DATA_DIR = tmp_path / f"machine-{number % 2}"
        answer = put_dump(site, authorization, piece, of=body, Content_Range=position)
        assert answer.status == (201 if number == 3 else 202), answer
    settings.DATA_DIR = tmp_path / "machine-2"
    assert Dump.objects.get().bytes == 350 and list_shared_uploads() == []

    other = os.urandom(200)
    for number, (piece, position) in enumerate(split_parts(os.urandom(200), 100)):
        settings.DATA_DIR = tmp_path / f"machine-{number}"
        status = put_dump(site, authorization, piece, of=other, Content_Range=position).status
    assert status == 409 and list_shared_uploads() == [], "it starts from the beginning"


def test_a_gzipped_part_counts_its_plain_bytes(site: Site, authorization: str, run: Run) -> None:
    for piece, position in split_parts(BODY, 30):
        answer = put_dump(
            site, authorization, gzip.compress(piece), of=BODY, Content_Range=position, Content_Encoding="gzip"
        )
    assert answer.status == 201


@pytest.mark.parametrize(
    "place", ["bytes 0-9", "bytes 5-2/10", "bytes 0-10/10", "lines 0-1/2", "bytes 0-1/" + "9" * 30]
)
def test_a_malformed_range_is_refused(site: Site, authorization: str, run: Run, place: str) -> None:
    assert put_dump(site, authorization, BODY, Content_Range=place).status == 400


def test_a_part_that_is_shorter_than_it_says_is_not_kept(site: Site, authorization: str, run: Run) -> None:
    put_dump(site, authorization, BODY[:10], of=BODY, Content_Range=f"bytes 0-9/{len(BODY)}")
    short = put_dump(
        site, authorization, gzip.compress(b"abc"), of=BODY, Content_Range="bytes 10-19/57", Content_Encoding="gzip"
    )
    offset_answer = put_dump(site, authorization, b"", of=BODY, Content_Range=f"bytes */{len(BODY)}")
    assert (len(BODY), short.status, offset_answer.json) == (57, 400, {"received": 10})


def test_parts_need_space_for_the_rest_only(
    site: Site, authorization: str, run: Run, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = os.urandom(300)

    def count_free_bytes() -> int:
        return RESERVED_BYTES + 2 * len(body) - sum(path.stat().st_size for path in list_incoming_files(data_dir))

    monkeypatch.setattr(app, "count_free_bytes", count_free_bytes)
    statuses = [
        put_dump(site, authorization, piece, of=body, Content_Range=place).status
        for piece, place in split_parts(body, 100)
    ]
    assert statuses == [202, 202, 201]
    assert put_dump(site, authorization, os.urandom(301)).status == 507
