"""The retention policy and the quota of a project over the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import AuditEntry, Project, RetentionPolicy, Run, RunDiskUsage, Sample
from rollouts.retention import apply_due_policies
from tests.rollouts.retention.test_drop import age_steps, write_step
from tests.support import builders

PATH = "/api/v1/projects/math/retention/"


def request_retention(client: Client, method: str, data: Any = None) -> Any:
    return getattr(client, method)(PATH, data, content_type="application/json")


@pytest.fixture
def owner_client(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


def test_an_owner_changes_the_policy_and_the_audit_log_has_it(owner_client: Client, project: Project) -> None:
    assert request_retention(owner_client, "get").json()["description"] == ["Everything is kept."]
    response = request_retention(owner_client, "patch", {"train": "every", "every": 5, "raw_after_days": 7})
    assert response.status_code == 200 and response.json()["policy"]["every"] == 5
    assert len(response.json()["description"]) == 2
    entry = AuditEntry.objects.get(verb="retention.set")
    assert entry.detail == {"train": "every", "every": 5, "raw_after_days": 7}
    request_retention(owner_client, "patch", {"train": "every"})
    assert AuditEntry.objects.filter(verb="retention.set").count() == 1, "nothing changed"


@pytest.mark.parametrize(
    "data", [{"train": "some"}, {"every": 0}, {"groups": ""}, {"max_steps": -1}, {"after_days": 1.5}, {"seed": True}]
)
def test_a_policy_that_is_not_valid_is_refused(owner_client: Client, data: dict[str, Any]) -> None:
    response = request_retention(owner_client, "patch", data)
    assert response.status_code == 400 and response.json()["error"]["field"] in data
    assert not RetentionPolicy.objects.exists()


@pytest.mark.parametrize(("role", "may_look"), [("viewer", False), ("annotator", False), ("maintainer", True)])
def test_only_owners_change_the_policy(client: Client, project: Project, role: str, may_look: bool) -> None:
    client.force_login(builders.member(project, "petr", role))
    assert request_retention(client, "get").status_code == 200
    assert request_retention(client, "patch", {"train": "every"}).status_code == 403
    assert request_retention(client, "post", {"apply": True}).status_code == 403
    assert request_retention(client, "post", {}).status_code == (200 if may_look else 403)


def test_strangers_get_404(client: Client, project: Project, stranger: User) -> None:
    client.force_login(stranger)
    assert {request_retention(client, method, {}).status_code for method in ("get", "patch", "post")} == {404}


def test_a_dry_run_drops_nothing_and_a_pass_drops_the_reported_samples(owner_client: Client, run: Run) -> None:
    for step in range(1, 6):
        write_step(run, step)
    age_steps(run)
    request_retention(owner_client, "patch", {"train": "every", "every": 2})
    report = request_retention(owner_client, "post", {}).json()["report"]
    assert report["totals"]["drops"] == 64 and report["totals"]["kept"] == {"every": 64, "last-step": 32}
    assert Sample.objects.count() == 160
    assert request_retention(owner_client, "post", {"apply": True}).status_code == 202
    assert apply_due_policies() == 64
    state = request_retention(owner_client, "get").json()
    assert state["dropped"]["samples"] == 64 and state["finished_at"]
    steps = owner_client.get(f"/api/v1/runs/{run.uid}/steps/").json()["results"]
    assert [step["retention"] and step["retention"]["dropped"] for step in steps] == [32, None, 32, None, None]
    assert steps[0]["samples"] == 32, "the statistics stay"
    assert owner_client.get(f"/api/v1/runs/{run.uid}/").json()["retention"]["samples"] == 64


def test_only_a_server_admin_sets_the_quota(owner_client: Client, owner: User, run: Run) -> None:
    assert request_retention(owner_client, "patch", {"quota": 1000}).status_code == 403
    User.objects.filter(pk=owner.pk).update(is_superuser=True)
    RunDiskUsage.objects.create(run=run, raw=850)
    quota = request_retention(owner_client, "patch", {"quota": 1000}).json()["quota"]
    assert quota == {"bytes": 1000, "used": 850, "percent": 85}
    assert AuditEntry.objects.get(verb="quota.set").detail == {"quota": 1000, "before": None}
    assert request_retention(owner_client, "patch", {"quota": None}).json()["quota"] is None
