"""Lists over all projects, and the demo. `test_access_matrix.py` has the access rights of each URL."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from rollouts.findings import findings
from rollouts.models import Project, Run
from rollouts.pins import pins
from rollouts.saved_views import save_view
from tests.dashboard.support.api_client import create_filled_run, get_first_sample
from tests.rollouts.support.artifacts import register_artifact

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

# Pages that show what the user may see, of any project.
LISTS = ("runs", "search", "ahead", "findings", "go", "live", "pins", "review", "compare", "settings", "saved-views")


@pytest.fixture
def run(project: Project, owner: User) -> Run:
    """A run with a finding, a pin and a view that the project shares."""
    run = create_filled_run(project)
    findings.create_finding(project, owner, title="Loops")
    register_artifact(run, 1, attempt="a")
    pins.pin_step(run, 1, owner)
    save_view(owner, page="runs", name="Low", params="q=score<0.2", project=project, shared=True)
    return run


def sign_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_list_shows_a_stranger_nothing_of_a_project(run: Run, owner: User, stranger: User) -> None:
    sample = get_first_sample(run).pk
    queries = ("", f"project=math&run={run.uid}&of={run.uid}@1&q=a&show=bin&page=runs", f"sel={sample}&ids={sample}")
    secrets = (run.uid, run.name, sample, "Loops", "Low", owner.username)
    client = sign_in(stranger)
    for name in LISTS:
        for query in queries:
            answer = client.get(f"{reverse(name)}?{query}")
            text = (b"".join(answer) if answer.streaming else answer.content).decode()  # type: ignore[arg-type]
            shown = text.replace(query, "").replace(query.replace("&", "&amp;"), "")
            leaked = [secret for secret in secrets if f">{secret}<" in shown or f"/{secret}/" in shown]
            assert answer.status_code in (200, 302, 400, 404) and not leaked, (name, query)


def test_the_demo_belongs_to_the_user_who_loads_it_first(owner: User, stranger: User) -> None:
    assert sign_in(stranger).get("/demo/").status_code == 405
    sign_in(stranger).post("/demo/")
    project = Project.objects.get(slug="demo")
    assert project.role_of(stranger) == "owner"
    runs = list(project.runs.values_list("pk", "created_at"))
    sign_in(owner).post("/demo/")
    assert project.role_of(owner) == "" and list(project.runs.values_list("pk", "created_at")) == runs
