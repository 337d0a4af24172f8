"""Files of artifacts over real HTTP: sent whole or in parts, verified, read back."""

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
from tests.dashboard.support.asgi_server import Answer, Site
from tests.rollouts.support.artifacts import compute_key, register_artifact
from tests.support import builders
from tests.support.stored import blob_path

pytestmark = pytest.mark.django_db(transaction=True)

META = b'{"global_steps": 3}'


@pytest.fixture
def key(owner: User, project: Project) -> str:
    return f"Bearer {builders.token(owner, 'ingest', on=project)}"


@pytest.fixture
def reading(owner: User, project: Project) -> str:
    return f"Bearer {builders.token(owner, 'read', on=project)}"


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, uid="u1")


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def address(files: dict[str, bytes], body: bytes) -> str:
    return f"/api/v1/runs/u1/artifacts/{compute_key(files)}/files/{sha(body)}/"


def put(site: Site, key: str, files: dict[str, bytes], body: Any, *, of: bytes = b"", **headers: str) -> Answer:
    return site.send("PUT", address(files, of or body), body, Authorization=key, **headers)


def left(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "incoming").rglob("*") if path.is_file()]


def checked(files: dict[str, bytes]) -> Artifact:
    artifact = Artifact.objects.get(key=compute_key(files))
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    return artifact


def test_a_file_that_the_manifest_names_is_kept_plain_and_read_back(
    site: Site, key: str, reading: str, run: Run, data_dir: Path
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    answer = put(site, key, files, META)
    assert (answer.status, answer.json) == (201, {"sha256": sha(META), "bytes": len(META)})
    assert blob_path(run.project_id, sha(META)).read_bytes() == META
    assert left(data_dir) == []
    early = site.send("GET", address(files, META), Authorization=reading)
    assert (early.status, early.json["error"]["code"]) == (409, "conflict")
    checked(files)
    got = site.send("GET", address(files, META), Authorization=reading)
    assert (got.status, got.body, got.headers["content-length"]) == (200, META, str(len(META)))


def test_what_no_manifest_names_is_not_taken(site: Site, key: str, run: Run, data_dir: Path) -> None:
    assert put(site, key, {"meta.json": META}, META).status == 404
    register_artifact(run, 3, {"meta.json": META})
    assert put(site, key, {"meta.json": META}, b"{}").status == 404
    assert (Blob.objects.count(), left(data_dir)) == (0, [])


def test_other_bytes_than_the_address_names_are_refused_and_gone(
    site: Site, key: str, run: Run, data_dir: Path
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    wrong = b"x" * len(META)
    assert put(site, key, files, wrong, of=META).status == 409
    assert put(site, key, files, META + b" ", of=META).status == 413
    assert put(site, key, files, META[:-1], of=META).status == 409
    assert (Blob.objects.count(), left(data_dir)) == (0, [])


def test_a_file_that_is_here_is_verified_again_and_a_wrong_one_is_still_refused(
    site: Site, key: str, run: Run, data_dir: Path
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    assert [put(site, key, files, META).status for _ in range(2)] == [201, 200]
    assert put(site, key, files, b"y" * len(META), of=META).status == 409
    assert blob_path(run.project_id, sha(META)).read_bytes() == META
    assert left(data_dir) == []


def test_parts_go_on_where_they_ended_and_a_question_says_how_far_it_is(
    site: Site, key: str, reading: str, run: Run, data_dir: Path
) -> None:
    body = b"[" + b"1," * 1_300_000 + b"1]"
    files = {"big.json": body}
    artifact = register_artifact(run, 3, files)
    requested = put(site, key, files, b"", of=body, Content_Range=f"bytes */{len(body)}")
    assert (requested.status, requested.json) == (202, {"received": 0})
    put(site, key, files, body[:1_000_000], of=body, Content_Range=f"bytes 0-999999/{len(body)}")
    artifact.refresh_from_db()
    assert artifact.state == "uploading"
    head = site.send("HEAD", address(files, body), Authorization=key)
    assert (head.status, head.headers["upload-offset"]) == (404, "1000000")
    span = f"bytes 1000000-{len(body) - 1}/{len(body)}"
    last = put(site, key, files, body[1_000_000:], of=body, Content_Range=span)
    assert (last.status, last.json) == (201, {"sha256": sha(body), "bytes": len(body)})
    known = site.send("HEAD", address(files, body), Authorization=key)
    assert (known.status, known.headers["upload-offset"]) == (200, str(len(body)))
    assert put(site, key, files, b"", of=body, Content_Range=f"bytes */{len(body)}").status == 200
    assert (checked(files).state, left(data_dir)) == ("ready", [])
    assert site.send("GET", address(files, body), Authorization=reading).body == body


def test_parts_of_another_size_than_the_manifest_says_are_refused(site: Site, key: str, run: Run) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    assert put(site, key, files, META, of=META, Content_Range=f"bytes 0-{len(META) - 1}/999").status == 400


def test_parts_with_the_wrong_sum_are_thrown_away(site: Site, key: str, run: Run, data_dir: Path) -> None:
    body, other = os.urandom(200), os.urandom(200)
    files = {"gen_batch.dp": body}
    register_artifact(run, 3, files)
    put(site, key, files, other[:100], of=body, Content_Range="bytes 0-99/200")
    assert put(site, key, files, other[100:], of=body, Content_Range="bytes 100-199/200").status == 409
    assert left(data_dir) == []


@pytest.mark.parametrize(
    ("asked", "status", "body"),
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
    site: Site, key: str, reading: str, run: Run, asked: str, status: int, body: bytes | None
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    put(site, key, files, META)
    checked(files)
    answer = site.send("GET", address(files, META), Authorization=reading, Range=asked)
    assert answer.status == status
    if body is not None:
        first = META.index(body)
        assert answer.body == body
        assert answer.headers["content-range"] == f"bytes {first}-{first + len(body) - 1}/{len(META)}"


def test_no_file_of_an_unsafe_artifact_is_served_not_even_its_json(
    site: Site, key: str, reading: str, run: Run
) -> None:
    evil = b"cposix\nsystem\n(S'true'\ntR."
    files = {"gen_batch.dp": evil, "meta.json": META}
    register_artifact(run, 3, files)
    for body in files.values():
        assert put(site, key, files, body).status == 201
    assert checked(files).state == "unsafe"
    for body in files.values():
        answer = site.send("GET", address(files, body), Authorization=reading)
        assert (answer.status, answer.json["error"]["code"]) == (409, "conflict")
        assert "system" in answer.json["error"]["message"]


def test_files_are_for_the_people_of_the_project(
    site: Site, key: str, run: Run, owner: User, mate: User, stranger: User
) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    senders = [builders.token(stranger, "ingest"), builders.token(mate, "ingest"), builders.token(owner, "read")]
    assert [put(site, f"Bearer {token}", files, META).status for token in senders] == [404, 403, 403]
    put(site, key, files, META)
    checked(files)
    readers = [builders.token(stranger, "read"), builders.token(mate, "read"), builders.token(owner, "ingest")]
    answers = [site.send("GET", address(files, META), Authorization=f"Bearer {token}").status for token in readers]
    assert answers == [404, 200, 403]


def test_bytes_of_one_project_are_not_served_to_another(site: Site, key: str, run: Run, owner: User) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    put(site, key, files, META)
    other = builders.project("code")
    Membership.objects.create(project=other, user=owner, role="owner")
    theirs = register_artifact(builders.run(other, uid="u2"), 3, files)
    requested = f"/api/v1/runs/u2/artifacts/{theirs.key}/files/{sha(META)}/"
    assert site.send("HEAD", requested, Authorization=f"Bearer {builders.token(owner, 'ingest')}").status == 404
    assert Blob.objects.filter(project=other).count() == 0


def test_a_full_disk_is_said_before_the_body(site: Site, key: str, run: Run, monkeypatch: Any) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    monkeypatch.setattr(app, "count_free_bytes", lambda: 1 << 20)
    assert put(site, key, files, META).status == 507


@pytest.mark.parametrize(
    "path", ["artifacts/abc/files/{sha}/", "artifacts/%00/files/{sha}/", "artifacts/{sha}/files/abc/"]
)
def test_a_malformed_address_is_no_file(site: Site, key: str, reading: str, run: Run, path: str) -> None:
    requested = f"/api/v1/runs/u1/{path.format(sha='a' * 64)}"
    assert site.send("PUT", requested, META, Authorization=key).status == 400
    assert site.send("GET", requested, Authorization=reading).status == 400


def test_the_bytes_of_another_size_are_no_file_of_a_manifest_that_lies(site: Site, key: str, run: Run) -> None:
    files = {"meta.json": META}
    register_artifact(run, 3, files)
    assert put(site, key, files, META).status == 201
    lies = {"meta.json": {"sha256": sha(META), "bytes": 99}}
    lying = artifacts.register_artifact(
        run, "files", artifacts.ArtifactManifest.from_request({"role": "rollout", "step": 4, "files": lies})
    )[0]
    requested = f"/api/v1/runs/u1/artifacts/{lying.key}/files/{sha(META)}/"
    assert site.send("HEAD", requested, Authorization=key).status == 404
    sent = site.send("PUT", requested, META, Authorization=key)
    assert sent.status == 400 and "99 bytes" in sent.json["error"]["message"]
