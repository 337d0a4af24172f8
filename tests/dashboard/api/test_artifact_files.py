"""Files of artifacts over real HTTP: sent in one piece or in parts, verified, and read back."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from dashboard.uploads import app
from rollouts.models import Artifact, Blob, Membership, Project, Run
from rollouts.pins import artifact_check, artifacts
from rollouts.pins.manifests import ArtifactManifest
from tests.dashboard.support.asgi_server import Answer, Site
from tests.rollouts.support.artifacts import compute_key, register_artifact
from tests.support import builders
from tests.support.stored import blob_path

pytestmark = pytest.mark.django_db(transaction=True)

META = b'{"global_steps": 3}'


@pytest.fixture
def authorization(owner: User, project: Project) -> str:
    return f"Bearer {builders.token(owner, 'ingest', on=project)}"


@pytest.fixture
def read_authorization(owner: User, project: Project) -> str:
    return f"Bearer {builders.token(owner, 'read', on=project)}"


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, uid="u1")


def compute_sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def build_file_path(files: dict[str, bytes], body: bytes) -> str:
    return f"/api/v1/runs/u1/artifacts/{compute_key(files)}/files/{compute_sha256(body)}/"


def put_file(
    site: Site, authorization: str, files: dict[str, bytes], body: Any, *, of: bytes = b"", **headers: str
) -> Answer:
    return site.send("PUT", build_file_path(files, of or body), body, Authorization=authorization, **headers)


def list_incoming_files(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "incoming").rglob("*") if path.is_file()]


def check_uploaded_artifact(files: dict[str, bytes]) -> Artifact:
    artifact = Artifact.objects.get(key=compute_key(files))
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    return artifact


def test_a_file_that_the_manifest_names_is_kept_plain_and_read_back(
    site: Site, authorization: str, read_authorization: str, run: Run, data_dir: Path
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    answer = put_file(site, authorization, files, META)
    assert (answer.status, answer.json) == (201, {"sha256": compute_sha256(META), "bytes": len(META)})
    assert blob_path(run.project_id, compute_sha256(META)).read_bytes() == META
    assert list_incoming_files(data_dir) == []
    refused = site.send("GET", build_file_path(files, META), Authorization=read_authorization)
    assert (refused.status, refused.json["error"]["code"]) == (409, "conflict")
    check_uploaded_artifact(files)
    served = site.send("GET", build_file_path(files, META), Authorization=read_authorization)
    assert (served.status, served.body, served.headers["content-length"]) == (200, META, str(len(META)))


def test_a_file_that_no_manifest_names_is_refused(site: Site, authorization: str, run: Run, data_dir: Path) -> None:
    assert put_file(site, authorization, {"meta.json": META}, META).status == 404
    register_artifact(run, 3, {"meta.json": META})
    assert put_file(site, authorization, {"meta.json": META}, b"{}").status == 404
    assert (Blob.objects.count(), list_incoming_files(data_dir)) == (0, [])


def test_bytes_with_another_hash_than_the_url_are_refused_and_deleted(
    site: Site, authorization: str, run: Run, data_dir: Path
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    wrong = b"x" * len(META)
    assert put_file(site, authorization, files, wrong, of=META).status == 409
    assert put_file(site, authorization, files, META + b" ", of=META).status == 413
    assert put_file(site, authorization, files, META[:-1], of=META).status == 409
    assert (Blob.objects.count(), list_incoming_files(data_dir)) == (0, [])


def test_a_stored_file_is_verified_again_and_wrong_bytes_are_refused(
    site: Site, authorization: str, run: Run, data_dir: Path
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    assert [put_file(site, authorization, files, META).status for _ in range(2)] == [201, 200]
    assert put_file(site, authorization, files, b"y" * len(META), of=META).status == 409
    assert blob_path(run.project_id, compute_sha256(META)).read_bytes() == META
    assert list_incoming_files(data_dir) == []


def test_an_upload_in_parts_continues_at_the_offset_that_the_server_reports(
    site: Site, authorization: str, read_authorization: str, run: Run, data_dir: Path
) -> None:
    body = b"[" + b"1," * 1_300_000 + b"1]"
    files = {"big.json": body}
    artifact = register_artifact(run, 3, files)
    offset_answer = put_file(site, authorization, files, b"", of=body, Content_Range=f"bytes */{len(body)}")
    assert (offset_answer.status, offset_answer.json) == (202, {"received": 0})
    put_file(site, authorization, files, body[:1_000_000], of=body, Content_Range=f"bytes 0-999999/{len(body)}")
    artifact.refresh_from_db()
    assert artifact.state == "uploading"
    head = site.send("HEAD", build_file_path(files, body), Authorization=authorization)
    assert (head.status, head.headers["upload-offset"]) == (404, "1000000")
    content_range = f"bytes 1000000-{len(body) - 1}/{len(body)}"
    last = put_file(site, authorization, files, body[1_000_000:], of=body, Content_Range=content_range)
    assert (last.status, last.json) == (201, {"sha256": compute_sha256(body), "bytes": len(body)})
    known = site.send("HEAD", build_file_path(files, body), Authorization=authorization)
    assert (known.status, known.headers["upload-offset"]) == (200, str(len(body)))
    assert put_file(site, authorization, files, b"", of=body, Content_Range=f"bytes */{len(body)}").status == 200
    assert (check_uploaded_artifact(files).state, list_incoming_files(data_dir)) == ("ready", [])
    assert site.send("GET", build_file_path(files, body), Authorization=read_authorization).body == body


def test_parts_of_another_size_than_the_manifest_says_are_refused(site: Site, authorization: str, run: Run) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    assert (
        put_file(site, authorization, files, META, of=META, Content_Range=f"bytes 0-{len(META) - 1}/999").status == 400
    )


def test_parts_with_the_wrong_checksum_are_deleted(site: Site, authorization: str, run: Run, data_dir: Path) -> None:
    body, other = os.urandom(200), os.urandom(200)
    files = {"gen_batch.dp": body}
    register_artifact(run, 3, files)
    put_file(site, authorization, files, other[:100], of=body, Content_Range="bytes 0-99/200")
    assert put_file(site, authorization, files, other[100:], of=body, Content_Range="bytes 100-199/200").status == 409
    assert list_incoming_files(data_dir) == []


@pytest.mark.parametrize(
    ("range_header", "status", "body"),
    [
        ("bytes=0-4", 206, META[:5]),
        ("bytes=5-", 206, META[5:]),
        ("bytes=-4", 206, META[-4:]),
        ("bytes=5-999", 206, META[5:]),
        ("bytes=99-", 416, None),
        ("bytes=4-2", 416, None),
        ("bytes=-", 416, None),
        ("bytes=0-1,3-4", 416, None),
        ("lines=0-1", 416, None),
    ],
)
def test_a_range_of_a_file_is_read(
    site: Site,
    authorization: str,
    read_authorization: str,
    run: Run,
    range_header: str,
    status: int,
    body: bytes | None,
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    put_file(site, authorization, files, META)
    check_uploaded_artifact(files)
    answer = site.send("GET", build_file_path(files, META), Authorization=read_authorization, Range=range_header)
    assert answer.status == status
    if body is not None:
        first = META.index(body)
        assert answer.body == body
        assert answer.headers["content-range"] == f"bytes {first}-{first + len(body) - 1}/{len(META)}"


def test_no_file_of_an_unsafe_artifact_is_served_not_even_its_json(
    site: Site, authorization: str, read_authorization: str, run: Run
) -> None:
    unsafe_pickle = b"cposix\nsystem\n(S'true'\ntR."
    files = {"gen_batch.dp": unsafe_pickle, "meta.json": META}
    register_artifact(run, 3, files)
    for body in files.values():
        assert put_file(site, authorization, files, body).status == 201
    assert check_uploaded_artifact(files).state == "unsafe"
    for body in files.values():
        answer = site.send("GET", build_file_path(files, body), Authorization=read_authorization)
        assert (answer.status, answer.json["error"]["code"]) == (409, "conflict")
        assert "system" in answer.json["error"]["message"]


def test_files_need_a_role_in_the_project_and_the_right_scope(
    site: Site, authorization: str, run: Run, owner: User, mate: User, stranger: User
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    senders = [builders.token(stranger, "ingest"), builders.token(mate, "ingest"), builders.token(owner, "read")]
    assert [put_file(site, f"Bearer {token}", files, META).status for token in senders] == [404, 403, 403]
    put_file(site, authorization, files, META)
    check_uploaded_artifact(files)
    readers = [builders.token(stranger, "read"), builders.token(mate, "read"), builders.token(owner, "ingest")]
    answers = [
        site.send("GET", build_file_path(files, META), Authorization=f"Bearer {token}").status for token in readers
    ]
    assert answers == [404, 200, 403]


def test_bytes_of_one_project_are_not_served_to_another(site: Site, authorization: str, run: Run, owner: User) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    put_file(site, authorization, files, META)
    other = builders.project("code")
    Membership.objects.create(project=other, user=owner, role="owner")
    other_artifact = register_artifact(builders.run(other, uid="u2"), 3, files)
    url = f"/api/v1/runs/u2/artifacts/{other_artifact.key}/files/{compute_sha256(META)}/"
    assert site.send("HEAD", url, Authorization=f"Bearer {builders.token(owner, 'ingest')}").status == 404
    assert Blob.objects.filter(project=other).count() == 0


def test_a_full_disk_is_reported_before_the_body_is_read(
    site: Site, authorization: str, run: Run, monkeypatch: Any
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    monkeypatch.setattr(app, "count_free_bytes", lambda: 1 << 20)
    assert put_file(site, authorization, files, META).status == 507


@pytest.mark.parametrize(
    "path", ["artifacts/abc/files/{sha}/", "artifacts/%00/files/{sha}/", "artifacts/{sha}/files/abc/"]
)
def test_a_malformed_url_of_a_file_is_refused(
    site: Site, authorization: str, read_authorization: str, run: Run, path: str
) -> None:
    url = f"/api/v1/runs/u1/{path.format(sha='a' * 64)}"
    assert site.send("PUT", url, META, Authorization=authorization).status == 400
    assert site.send("GET", url, Authorization=read_authorization).status == 400


def test_a_file_is_refused_if_its_manifest_names_another_size(site: Site, authorization: str, run: Run) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    assert put_file(site, authorization, files, META).status == 201
    wrong_files = {"meta.json": {"sha256": compute_sha256(META), "bytes": 99}}
    wrong_artifact = artifacts.store_manifest(
        run, "files", ArtifactManifest.from_request({"role": "rollout", "step": 4, "files": wrong_files})
    )[0]
    url = f"/api/v1/runs/u1/artifacts/{wrong_artifact.key}/files/{compute_sha256(META)}/"
    assert site.send("HEAD", url, Authorization=authorization).status == 404
    refused = site.send("PUT", url, META, Authorization=authorization)
    assert refused.status == 400 and "99 bytes" in refused.json["error"]["message"]
