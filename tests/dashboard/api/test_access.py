"""Access that depends on more than role and URL, for which see `tests/dashboard/test_access_matrix.py`."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Run
from tests.dashboard.support.api_client import ApiClient, create_filled_run, get_first_sample
from tests.support import builders

pytestmark = pytest.mark.django_db

LISTS = ["runs/", "findings/", "flags/", "projects/"]
SCOPES = ("ingest", "read", "annotate", "admin")


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project)


@pytest.mark.parametrize("path", LISTS)
def test_a_list_over_all_projects_is_empty_for_a_stranger(path: str, run: Run, mate: User, stranger: User) -> None:
    ApiClient.signed_in(mate)("POST", "flags/", {"sample": get_first_sample(run).pk})
    ApiClient.signed_in(mate)("POST", "findings/", {"project": "math", "title": "Loops"})
    assert ApiClient.signed_in(mate)("GET", path).json()["count"] == 1
    assert ApiClient.signed_in(stranger)("GET", path).json()["count"] == 0
    assert ApiClient(Client())("GET", path).status_code == 401


def test_a_missing_scope_is_answered_with_the_command_that_creates_a_token_with_it(owner: User) -> None:
    message = ApiClient.with_token(owner, "ingest")("GET", "runs/").content.decode()
    assert "needs read" in message and "rolloutdeck token create NAME --project PROJECT --scope ingest,read`" in message


def test_a_token_for_one_project_cannot_create_a_token_for_another(run: Run, owner: User) -> None:
    builders.project("code").memberships.create(user=owner, role="owner")
    api = ApiClient.with_token(owner, "admin", on=run.project)
    assert api("POST", "tokens/", {"name": "x", "project": "code", "scopes": "read"}).status_code == 404
    assert api("POST", "tokens/", {"name": "x", "project": "fresh", "scopes": "read"}).status_code == 404
    assert api("POST", "tokens/", {"name": "x", "scopes": "read"}).json()["project"] == "math"
    assert api("POST", "projects/", {"slug": "fresh"}).status_code == 403


def test_a_browser_needs_its_csrf_token_to_write(run: Run, owner: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    answer = ApiClient(client)("POST", "flags/", {"sample": get_first_sample(run).pk})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")


def test_the_token_of_a_removed_member_no_longer_reads_the_project(run: Run, mate: User, owner: User) -> None:
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
