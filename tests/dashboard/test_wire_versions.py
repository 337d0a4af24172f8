"""Clients of other versions: the released ones are served, all others get 426 with both versions."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.protocol import WIRE_VERSION, describe_wire_mismatch
from rollouts.indexing import index_dump
from rollouts.models import Dump, Project, Run, Sample
from tests.conftest import DATA
from tests.dashboard.support.asgi_server import Site
from tests.support import builders

RECORDED = sorted((DATA / "versions").glob("*.requests.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".requests.json"))
def test_the_requests_of_a_released_client_are_accepted(path: Path, site: Site, project: Project, owner: User) -> None:
    secret = builders.token(owner, "ingest", on=project)
    for request in json.loads(path.read_text()):
        headers = {name: value for name, value in request["headers"].items() if name != "Content-Length"}
        body = base64.b64decode(request["body"])
        answer = site.send(request["method"], request["path"], body, **headers, Authorization=f"Bearer {secret}")
        assert answer.status in (200, 201), (request["path"], answer.status, answer.body)
    for dump in Dump.objects.all():
        index_dump(dump.pk)
    run = Run.objects.get(project=project, name="recorded")
    samples = Sample.objects.current_and_visible().filter(step__run=run)
    steps = [("eval", 2), *[("train", 1)] * 3, *[("train", 2)] * 3]
    assert sorted(samples.values_list("step__split", "step__step")) == steps
    assert run.outcome == "finished"


@pytest.mark.parametrize("path", ["/api/v1/runs/", f"/api/v1/runs/x/dumps/{'0' * 64}/"])
@pytest.mark.parametrize(
    ("version", "advice"),
    [(str(WIRE_VERSION + 1), "Upgrade the server."), ("0", "Upgrade the client"), ("x", "client")],
)
def test_an_unsupported_client_version_is_refused_with_both_versions(
    path: str, version: str, advice: str, site: Site
) -> None:
    method = "PUT" if "dumps" in path else "POST"
    answer = site.send(method, path, b"{}", **{"X-Rolloutdeck-Wire": version})
    message = answer.json["error"]["message"]
    assert (answer.status, answer.json["error"]["code"]) == (426, "wire_version")
    assert f"version {version} " in message and f"accepts {WIRE_VERSION}" in message and advice in message
    assert "x-rolloutdeck" in answer.headers


def test_programs_without_the_header_are_served() -> None:
    assert describe_wire_mismatch("") == describe_wire_mismatch(str(WIRE_VERSION)) == ""
