from __future__ import annotations

import gzip
import http.client
import io
import os
import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from dashboard.uploads import app
from dashboard.uploads.receive import UploadWriter
from rolloutdeck.protocol import wire
from rollouts.models import Dump, Membership, Project, Run, RunAlias
from rollouts.storage import access, get_raw_dump_key, raw_dumps
from tests.dashboard.support.asgi_server import Site
from tests.dashboard.uploads.support import BODY, compute_sha256, list_incoming_files, put_dump
from tests.support import builders
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_dump_is_stored_and_its_receipt_names_hash_and_bytes(
    site: Site, authorization: str, run: Run, project: Project
) -> None:
    answer = put_dump(site, authorization, BODY, query="?attempt=a&split=eval&step=7&source=7.jsonl&format=verl-jsonl")
    assert (answer.status, answer.json) == (201, {"sha256": compute_sha256(BODY), "bytes": len(BODY)})
    assert answer.headers["x-rolloutdeck"]
    dump = Dump.objects.get()
    assert (dump.run, dump.split, dump.step, dump.source, dump.attempt.key) == (run, "eval", 7, "7.jsonl", "a")
    with raw_dumps.open_raw_dump(project.pk, compute_sha256(BODY)) as raw:
        assert raw.read() == BODY


def test_the_same_dump_again_is_known_with_the_same_receipt(
    site: Site, authorization: str, run: Run, data_dir: Path
) -> None:
    first, again = put_dump(site, authorization, BODY), put_dump(site, authorization, BODY)
    assert (first.status, again.status, again.json) == (201, 200, first.json)
    assert (Dump.objects.count(), list_incoming_files(data_dir)) == (1, [])


@pytest.mark.parametrize(("state", "after"), [("failed", "received"), ("indexed", "indexed")])
def test_a_dump_whose_stored_bytes_are_gone_can_be_sent_again(
    site: Site, authorization: str, run: Run, project: Project, state: str, after: str
) -> None:
    put_dump(site, authorization, BODY)
    Dump.objects.update(state=state)
    access.delete_file(get_raw_dump_key(project.pk, compute_sha256(BODY)))
    assert put_dump(site, authorization, BODY).status == 200
    with raw_dumps.open_raw_dump(project.pk, compute_sha256(BODY)) as raw:
        assert raw.read() == BODY
    assert Dump.objects.get().state == after


def test_a_dump_whose_bytes_the_policy_dropped_is_known(
    site: Site, authorization: str, run: Run, project: Project
) -> None:
    put_dump(site, authorization, BODY)
    Dump.objects.update(state="indexed", raw_dropped_at=timezone.now())
    access.delete_file(get_raw_dump_key(project.pk, compute_sha256(BODY)))
    assert put_dump(site, authorization, BODY).status == 200
    assert not access.has_file(get_raw_dump_key(project.pk, compute_sha256(BODY)))


def test_a_known_dump_of_many_megabytes_is_answered_although_its_body_is_not_read(
    site: Site, authorization: str, run: Run
) -> None:
    body = os.urandom(8 << 20)
    assert [put_dump(site, authorization, body).status for _ in range(2)] == [201, 200]


def test_bytes_with_another_hash_than_the_url_are_refused_and_deleted(
    site: Site, authorization: str, run: Run, data_dir: Path
) -> None:
    answer = put_dump(site, authorization, BODY, of=b"something else")
    assert (answer.status, answer.json["error"]["code"]) == (409, "hash_mismatch")
    assert (Dump.objects.count(), list_incoming_files(data_dir)) == (0, [])


def test_a_gzipped_body_is_stored_plain(site: Site, authorization: str, run: Run) -> None:
    packed = gzip.compress(BODY[:20]) + gzip.compress(BODY[20:])
    answer = put_dump(site, authorization, packed, of=BODY, Content_Encoding="gzip")
    assert (answer.status, answer.json["bytes"]) == (201, len(BODY))


@pytest.mark.parametrize(
    "packed",
    [b"no gzip at all", gzip.compress(BODY, mtime=0)[:-9], gzip.compress(BODY, mtime=0) + b"tail"],
    ids=["no gzip", "cut short", "something after it"],
)
def test_a_damaged_gzip_stream_is_refused(
    site: Site, authorization: str, run: Run, data_dir: Path, packed: bytes
) -> None:
    answer = put_dump(site, authorization, packed, of=BODY, Content_Encoding="gzip")
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_input")
    assert list_incoming_files(data_dir) == []


def test_a_gzip_bomb_is_refused_while_it_inflates(site: Site, authorization: str, run: Run, data_dir: Path) -> None:
    bomb = gzip.compress(bytes(100 << 20))
    answer = put_dump(site, authorization, bomb, of=b"x", Content_Encoding="gzip")
    assert (answer.status, answer.json["error"]["code"]) == (413, "too_large")
    assert list_incoming_files(data_dir) == []


def test_a_gzip_stream_of_many_empty_members_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each member, zlib copies the rest of its input."""
    given: list[int] = []
    create = zlib.decompressobj

    class CountingDecompressor:
        def __init__(self, wbits: int) -> None:
            self.own = create(wbits=wbits)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            given.append(len(data))
            return self.own.decompress(data, max_length)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.own, name)

    monkeypatch.setattr(zlib, "decompressobj", CountingDecompressor)
    file = io.BytesIO()
    writer = UploadWriter(file, gzipped=True, max_bytes=1 << 30)
    writer.write(gzip.compress(b"") * 20_000 + gzip.compress(BODY))
    writer.finish()
    assert file.getvalue() == BODY and writer.size == len(BODY)
    assert len(given) > 20_000 and max(given) <= 16 << 10


def test_a_body_over_the_limit_is_refused_by_its_length_alone(site: Site, authorization: str, run: Run) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    connection.putrequest("PUT", f"/api/v1/runs/u1/dumps/{compute_sha256(BODY)}/")
    connection.putheader("Authorization", authorization)
    connection.putheader("Content-Length", str(wire.MAX_DUMP_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413


def test_a_chunked_body_over_the_limit_is_refused(site: Site, authorization: str, run: Run, monkeypatch: Any) -> None:
    patch_everywhere(monkeypatch, wire, "MAX_DUMP_BYTES", 1 << 20)
    answer = put_dump(site, authorization, iter([bytes(1 << 20), b"x"]), of=b"x")
    assert answer.status == 413


def test_an_interrupted_upload_leaves_no_files(site: Site, authorization: str, run: Run, data_dir: Path) -> None:
    path = f"/api/v1/runs/u1/dumps/{compute_sha256(BODY)}/"
    head = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(f"{head}Content-Length: 5000000\r\n\r\n".encode() + bytes(3_000_000))
        wait_until(lambda: list_incoming_files(data_dir))
    wait_until(lambda: not list_incoming_files(data_dir))
    assert Dump.objects.count() == 0


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_disk_is_reported_before_the_body_is_read(
    site: Site, authorization: str, run: Run, monkeypatch: Any
) -> None:
    monkeypatch.setattr(app, "count_free_bytes", lambda: 1 << 20)
    answer = put_dump(site, authorization, BODY)
    assert (answer.status, answer.headers["retry-after"]) == (507, "5")


def test_head_says_whether_a_dump_is_known(site: Site, authorization: str, run: Run) -> None:
    address = f"/api/v1/runs/u1/dumps/{compute_sha256(BODY)}/?attempt=a&step=1"
    assert site.send("HEAD", address, Authorization=authorization).status == 404
    put_dump(site, authorization, BODY)
    known = site.send("HEAD", address, Authorization=authorization)
    assert (known.status, known.headers["upload-offset"], known.body) == (200, str(len(BODY)), b"")


def build_run_headers(project: str, name: str, **more: str) -> dict[str, str]:
    return {"X_Rolloutdeck_Project": quote(project), "X_Rolloutdeck_Run": quote(name), **more}


def test_a_dump_of_an_unknown_run_creates_the_run_from_its_headers(
    site: Site, authorization: str, project: Project
) -> None:
    assert put_dump(site, authorization, BODY, **build_run_headers("math", "zählen 数")).status == 201
    run = Run.objects.get()
    assert (run.uid, run.name, run.project) == ("u1", "zählen 数", project)


def test_an_unknown_run_without_headers_is_not_found(site: Site, authorization: str, project: Project) -> None:
    assert put_dump(site, authorization, BODY).status == 404


def test_a_new_uid_with_a_taken_name_is_another_run_unless_it_resumes(
    site: Site, authorization: str, project: Project
) -> None:
    old = builders.run(project, "grpo", uid="old")
    put_dump(site, authorization, BODY, **build_run_headers("math", "grpo"))
    assert Run.objects.get(uid="u1").name == "grpo-2"
    Run.objects.get(uid="u1").delete()
    put_dump(site, authorization, BODY, **build_run_headers("math", "grpo", X_Rolloutdeck_Resume="allow"))
    assert (RunAlias.objects.get(uid="u1").run, Dump.objects.get().run) == (old, old)


def test_an_upload_needs_a_token_with_the_ingest_scope(site: Site, owner: User, project: Project, run: Run) -> None:
    reading = f"Bearer {builders.token(owner, 'read', 'annotate', on=project)}"
    assert [
        put_dump(site, authorization, BODY).status for authorization in (reading, "Bearer nonsense", "", "Basic x")
    ] == [403, 401, 401, 401]


def test_users_without_the_role_and_tokens_of_other_projects_cannot_write_to_a_run(
    site: Site, mate: User, stranger: User, owner: User, run: Run
) -> None:
    other = builders.project("code")
    Membership.objects.create(project=other, user=owner, role="owner")
    tokens = [
        builders.token(stranger, "ingest"),
        builders.token(mate, "ingest"),
        builders.token(owner, "ingest", on=other),
    ]
    assert [put_dump(site, f"Bearer {token}", BODY).status for token in tokens] == [404, 403, 404]


def test_only_an_admin_token_for_all_projects_creates_the_project_of_a_dump(
    site: Site, owner: User, project: Project
) -> None:
    bound, unbound, unbound_admin = (
        builders.token(owner, "ingest", "admin", on=project),
        builders.token(owner, "ingest"),
        builders.token(owner, "ingest", "admin"),
    )
    answers = [
        put_dump(site, f"Bearer {token}", BODY, **build_run_headers("fresh", "grpo")).status
        for token in (bound, unbound, unbound_admin)
    ]
    assert answers == [404, 404, 201]
    assert Project.objects.get(slug="fresh").role_of(owner) == "owner"


@pytest.mark.parametrize(
    "address",
    [
        "runs/u1/dumps/abc/",
        f"runs/u1/dumps/{'A' * 64}/",
        f"runs/u%001/dumps/{compute_sha256(BODY)}/",
        f"runs/{'u' * 65}/dumps/{compute_sha256(BODY)}/",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?step=-1",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?step=99999999999999999999999",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?split=test",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?source=%00",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?source=%ff",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?colour=red",
        f"runs/u1/dumps/{compute_sha256(BODY)}/?" + "&".join(f"a{n}=1" for n in range(50)),
    ],
)
def test_a_malformed_url_is_refused_in_one_sentence(site: Site, authorization: str, run: Run, address: str) -> None:
    answer = site.send("PUT", f"/api/v1/{address}", BODY, Authorization=authorization)
    assert answer.status == 400
    assert set(answer.json["error"]) <= {"code", "message", "field"}


@pytest.mark.parametrize("name", ["X_Rolloutdeck_Project", "X_Rolloutdeck_Run", "X_Rolloutdeck_Resume"])
def test_headers_with_a_nul_character_are_refused_in_one_sentence(
    site: Site, authorization: str, project: Project, name: str
) -> None:
    answer = put_dump(site, authorization, BODY, **{**build_run_headers("math", "grpo"), name: "a%00b"})
    assert (answer.status, answer.json["error"]["field"].lower()) == (400, name.replace("_", "-").lower())
    assert not Run.objects.exists()


def test_an_unknown_encoding_is_refused(site: Site, authorization: str, run: Run) -> None:
    assert put_dump(site, authorization, BODY, Content_Encoding="br").status == 415


def test_many_uploads_at_once_are_all_stored(site: Site, authorization: str, run: Run) -> None:
    bodies = [BODY * n for n in range(1, 25)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: put_dump(site, authorization, body, query="?attempt=new").status, bodies))
    assert answers == [201] * len(bodies)
    assert (Dump.objects.count(), run.attempts.count()) == (24, 1)


def test_a_dump_is_stored_although_the_broker_is_down(
    site: Site, authorization: str, run: Run, monkeypatch: Any
) -> None:
    from workers.tasks import index_dump

    monkeypatch.setattr(index_dump.app.conf, "broker_url", "redis+socket:///nowhere.sock")
    assert put_dump(site, authorization, BODY).status == 201
