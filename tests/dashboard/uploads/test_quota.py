"""Uploads of a project with a quota."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from rolloutdeck.client.upload.delivery import classify_response
from rolloutdeck.lib.http import ServerClient
from rollouts.models import Dump, Project, Run, RunDiskUsage
from tests.dashboard.support.asgi_server import Answer, Site
from tests.dashboard.uploads.support import BODY, compute_sha256
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)
PATH = f"/api/v1/runs/u1/dumps/{compute_sha256(BODY)}/?attempt=a&step=1"


@pytest.fixture
def secret(owner: User, project: Project) -> str:
    return builders.token(owner, "ingest", on=project)


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, uid="u1")
    RunDiskUsage.objects.create(run=run, raw=8_000_000)
    return run


def put_dump(site: Site, secret: str) -> Answer:
    return site.send("PUT", PATH, BODY, Authorization=f"Bearer {secret}")


@pytest.mark.parametrize(("quota", "warning"), [(None, ""), (20_000_000, ""), (9_000_000, "(88 %)")])
def test_below_the_quota_a_receipt_may_warn(site: Site, secret: str, run: Run, quota: int | None, warning: str) -> None:
    Project.objects.update(quota=quota)
    answer = put_dump(site, secret)
    assert answer.status == 201 and answer.json["sha256"] == compute_sha256(BODY)
    assert warning in answer.json.get("warning", "") and bool(warning) == ("warning" in answer.json)


def test_above_the_quota_nothing_is_stored_and_the_message_says_what_to_do(site: Site, secret: str, run: Run) -> None:
    Project.objects.update(quota=8_000_020)
    answer = put_dump(site, secret)
    assert answer.status == 507 and answer.json["error"]["code"] == "quota_exceeded"
    message = answer.json["error"]["message"]
    assert "Project math uses 8 MB of its quota of 8 MB (99 %)." in message and "retention policy" in message
    assert not Dump.objects.exists()
    client = ServerClient(f"http://127.0.0.1:{site.port}", secret)
    outcome = classify_response(client.request("PUT", PATH.removeprefix("/api/v1/"), body=BODY))
    assert outcome.state == "later", "the client keeps the file"
    Project.objects.update(quota=9_000_000)
    assert put_dump(site, secret).status == 201


def test_dumps_that_arrived_since_the_measurement_count(site: Site, secret: str, run: Run) -> None:
    Project.objects.update(quota=8_000_000 + len(BODY) + 10)
    assert put_dump(site, secret).status == 201
    other = BODY.replace(b"1+1", b"1+2")
    path = f"/api/v1/runs/u1/dumps/{compute_sha256(other)}/?attempt=a&step=2"
    assert site.send("PUT", path, other, Authorization=f"Bearer {secret}").status == 507
    assert put_dump(site, secret).status == 200, "bytes that are stored already need no space"


def test_metrics_are_accepted_above_the_quota(site: Site, secret: str, run: Run) -> None:
    Project.objects.update(quota=1)
    body = b'{"attempt": "a", "points": [{"step": 1, "values": {"loss": 0.5}}]}'
    headers = {"Authorization": f"Bearer {secret}", "Content_Type": "application/json"}
    assert site.send("POST", "/api/v1/runs/u1/metrics/", body, **headers).status < 300


def test_prometheus_metrics_have_the_quota(site: Site, secret: str, run: Run) -> None:
    Project.objects.update(quota=10_000_000)
    text = site.send("GET", "/metrics").body.decode()
    assert 'rolloutdeck_quota_bytes{project="math"} 1e+07' in text
    assert 'rolloutdeck_quota_used_bytes{project="math"} 8e+06' in text
