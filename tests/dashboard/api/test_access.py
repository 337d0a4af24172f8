"""Three people ask for everything: an owner, a mate who annotates, and a stranger."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Run
from tests.dashboard.support.api_client import ApiClient, filled, one_sample
from tests.support import builders

pytestmark = pytest.mark.django_db

READS = [
    "runs/{run}/",
    "runs/{run}/metrics/",
    "runs/{run}/steps/",
    "runs/{run}/dumps/",
    "samples/?run={run}",
    "samples/{sample}/",
    "samples/{sample}/history/",
    "samples/{sample}/tokens/",
    "flags/?run={run}",
    "exports/samples/?run={run}",
    "completions/?run={run}&q=sc",
    "projects/math/",
]
LISTS = ["runs/", "findings/", "flags/", "projects/"]
POINTS: dict[str, Any] = {"attempt": "a", "points": [{"step": 1, "values": {"x": 1}}]}
# (method, path, body, scope, status for the owner, status for the mate)
WRITES: list[tuple[str, str, Any, str, int, int]] = [
    ("POST", "runs/", {"project": "math", "name": "new"}, "ingest", 201, 403),
    ("PATCH", "runs/{run}/", {"name": "other"}, "ingest", 200, 403),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a"}, "ingest", 200, 403),
    ("POST", "runs/{run}/context/", {"attempt": "a", "host": "node-1"}, "ingest", 200, 403),
    ("POST", "runs/{run}/finish/", {"attempt": "a"}, "ingest", 200, 403),
    ("POST", "runs/{run}/metrics/", POINTS, "ingest", 200, 403),
    ("POST", "runs/{run}/index/", {}, "ingest", 200, 403),
    ("POST", "flags/", {"sample": "{sample}"}, "annotate", 201, 201),
    ("PATCH", "projects/math/", {"correct": "score>0"}, "admin", 200, 403),
    ("POST", "projects/math/members/", {"user": "stan", "role": "viewer"}, "admin", 200, 403),
    ("POST", "tokens/", {"name": "x", "project": "math", "scopes": ["read"]}, "admin", 201, 403),
    ("DELETE", "runs/{run}/", None, "admin", 204, 403),
]
SCOPES = ("ingest", "read", "annotate", "admin")


@pytest.fixture
def run(project: Project) -> Run:
    return filled(project)


def placed(value: Any, run: Run) -> Any:
    if isinstance(value, dict):
        return {key: placed(inner, run) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    return value.replace("{run}", run.uid).replace("{sample}", one_sample(run).pk)


@pytest.mark.parametrize("path", READS)
def test_what_belongs_to_a_project_is_there_for_its_people_only(
    path: str, run: Run, owner: User, mate: User, stranger: User
) -> None:
    address = placed(path, run)
    callers = [ApiClient.with_token(person, "read") for person in (owner, mate, stranger)]
    callers += [ApiClient.signed_in(person) for person in (owner, mate, stranger)]
    assert [api("GET", address).status_code for api in callers] == [200, 200, 404, 200, 200, 404]
    assert ApiClient(Client())("GET", address).status_code == 401


@pytest.mark.parametrize("path", LISTS)
def test_a_list_of_all_holds_nothing_for_a_stranger(path: str, run: Run, mate: User, stranger: User) -> None:
    ApiClient.signed_in(mate)("POST", "flags/", {"sample": one_sample(run).pk})
    ApiClient.signed_in(mate)("POST", "findings/", {"project": "math", "title": "Loops"})
    assert ApiClient.signed_in(mate)("GET", path).json()["count"] == 1
    assert ApiClient.signed_in(stranger)("GET", path).json()["count"] == 0
    assert ApiClient(Client())("GET", path).status_code == 401


@pytest.mark.parametrize(("method", "path", "body", "scope", "for_owner", "for_mate"), WRITES)
def test_writing_needs_the_role(
    method: str,
    path: str,
    body: Any,
    scope: str,
    for_owner: int,
    for_mate: int,
    run: Run,
    owner: User,
    mate: User,
    stranger: User,
) -> None:
    address, result = placed(path, run), placed(body, run)

    def status(api: ApiClient) -> int:
        return int(api(method, address, result).status_code)

    assert status(ApiClient.signed_in(stranger)) == 404
    assert status(ApiClient.signed_in(mate)) == for_mate
    assert status(ApiClient.with_token(mate, *SCOPES)) in ({403} if for_mate == 403 else {200, 201})
    assert status(ApiClient.signed_in(owner)) == for_owner


@pytest.mark.parametrize(("method", "path", "body", "scope", "for_owner", "for_mate"), WRITES)
def test_writing_needs_the_scope(
    method: str, path: str, body: Any, scope: str, for_owner: int, for_mate: int, run: Run, owner: User, stranger: User
) -> None:
    address, result = placed(path, run), placed(body, run)
    others = [other for other in SCOPES if other != scope]
    assert ApiClient.with_token(owner, *others)(method, address, result).status_code == 403
    assert ApiClient.with_token(owner, scope)(method, address, result).status_code == for_owner


@pytest.mark.parametrize("path", [*READS, *LISTS])
def test_reading_needs_the_scope_read(path: str, run: Run, owner: User) -> None:
    assert ApiClient.with_token(owner, "ingest", "annotate", "admin")("GET", placed(path, run)).status_code == 403


def test_a_token_without_a_scope_is_told_how_one_with_it_is_made(owner: User) -> None:
    message = ApiClient.with_token(owner, "ingest")("GET", "runs/").content.decode()
    assert "needs read" in message and "rolloutdeck token create NAME --scope ingest,read`" in message


@pytest.mark.parametrize("path", READS)
def test_a_token_for_one_project_reaches_no_other(path: str, run: Run, owner: User) -> None:
    other = builders.project("code")
    other.memberships.create(user=owner, role="owner")
    api = ApiClient.with_token(owner, *SCOPES, on=other)
    assert api("GET", placed(path, run)).status_code == 404
    assert api("GET", "runs/").json()["count"] == 0


def test_a_token_for_one_project_makes_no_token_for_another(run: Run, owner: User) -> None:
    builders.project("code").memberships.create(user=owner, role="owner")
    api = ApiClient.with_token(owner, "admin", on=run.project)
    assert api("POST", "tokens/", {"name": "x", "project": "code", "scopes": "read"}).status_code == 404
    assert api("POST", "tokens/", {"name": "x", "project": "fresh", "scopes": "read"}).status_code == 404
    assert api("POST", "tokens/", {"name": "x", "scopes": "read"}).json()["project"] == "math"
    assert api("POST", "projects/", {"slug": "fresh"}).status_code == 403


def test_a_browser_needs_its_csrf_token_to_write(run: Run, owner: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    answer = ApiClient(client)("POST", "flags/", {"sample": one_sample(run).pk})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")


def test_someone_who_left_the_project_takes_no_token_along(run: Run, mate: User, owner: User) -> None:
    api = ApiClient.with_token(mate, "read")
    assert api("GET", f"runs/{run.uid}/").status_code == 200
    ApiClient.signed_in(owner)("POST", "projects/math/members/", {"user": "mina", "role": ""})
    assert api("GET", f"runs/{run.uid}/").status_code == 404


def test_only_owners_see_and_revoke_the_tokens_of_a_project(run: Run, owner: User, mate: User) -> None:
    fields = {"name": "x", "project": "math", "scopes": "read"}
    created = ApiClient.signed_in(owner)("POST", "tokens/", fields).json()["id"]
    assert ApiClient.signed_in(mate)("GET", "tokens/").json()["count"] == 0
    assert ApiClient.signed_in(mate)("DELETE", f"tokens/{created}/").status_code == 404
    assert ApiClient.signed_in(owner)("DELETE", f"tokens/{created}/").status_code == 204


def test_the_description_is_for_people_with_an_account(owner: User) -> None:
    assert ApiClient(Client())("GET", "/api/schema/").status_code == 401
    assert ApiClient(Client())("GET", "/api/docs/").status_code == 302
    assert ApiClient.signed_in(owner)("GET", "/api/schema/").status_code == 200
