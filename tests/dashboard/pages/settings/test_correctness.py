"""The rule for Correct: maintainers change it on the settings page or by the API, and pages show it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.indexing import correctness
from rollouts.models import Project, Run
from tests.dashboard.support.api_client import ApiClient, create_filled_run
from tests.support import builders
from tests.support.html import collapse_spaces
from workers.celery import app

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(project: Project) -> Run:
    return create_filled_run(project)


@pytest.fixture(autouse=True)
def sent_projects(monkeypatch: Any) -> list[int]:
    """Ids of the projects whose tasks would be sent to the broker."""
    out: list[int] = []
    monkeypatch.setattr(app, "send_task", lambda name, args, **_: out.extend(args))
    return out


def post_rule(client: Client, rule: str) -> Any:
    return client.post("/settings/math/correct/", {"correct": rule})


def test_a_maintainer_saves_a_rule_and_a_worker_is_notified(
    client: Client, project: Project, run: Run, sent_projects: list[int]
) -> None:
    client.force_login(builders.member(project, "maria", "maintainer"))
    assert post_rule(client, "score>=0.5").headers["Location"] == "/settings/math/"
    assert sent_projects == [project.pk]
    assert "Evaluating with <code>score&gt;=0.5</code>: 0 of 2 steps" in client.get("/settings/math/").content.decode()
    correctness.evaluate_due_steps(project.pk)
    page = client.get("/settings/math/").content.decode()
    assert "All 2 steps use the rule <code>score&gt;=0.5</code>" in page
    assert 'value="score&gt;=0.5"' in page


@pytest.mark.parametrize(("name", "status"), [("mina", 403), ("stan", 404)])
def test_annotators_and_strangers_do_not_change_the_rule(
    client: Client, project: Project, mate: User, stranger: User, name: str, status: int
) -> None:
    client.force_login(User.objects.get(username=name))
    assert post_rule(client, "score>=0.5").status_code == status
    response = client.patch("/api/v1/projects/math/", {"correct": "score>=0.5"}, content_type="application/json")
    assert response.status_code == status
    assert Project.objects.get().correct == ""


def test_an_invalid_rule_is_shown_again_with_an_explanation(
    client: Client, project: Project, owner: User, sent_projects: list[int]
) -> None:
    client.force_login(owner)
    answer = post_rule(client, 'score>=0.5 ("<script>')
    page = answer.content.decode()
    assert answer.status_code == 400
    assert 'role="alert"' in page and "Missing closing" in page
    assert 'value="score&gt;=0.5 (&quot;&lt;script&gt;"' in page
    assert "<script>" not in page.partition("<main")[2]
    assert "cannot use <code>is:correct</code>" in post_rule(client, "is:correct").content.decode()
    assert (Project.objects.get().correct, sent_projects) == ("", [])


def test_viewers_read_the_rule_and_cannot_write_it(client: Client, mate: User, run: Run) -> None:
    client.force_login(mate)
    page = client.get("/settings/math/").content.decode()
    assert 'id="correct"' not in page
    assert "Save rule" not in page
    assert "All 2 steps use the rule <code>acc=1 if logged, else score&gt;0</code>" in page


def test_the_progress_panel_is_sent_alone(client: Client, owner: User, run: Run) -> None:
    client.force_login(owner)
    post_rule(client, "score>=0.5")
    client.get("/settings/math/")  # shows the message once
    panel = client.get("/settings/math/", headers={"HX-Request": "true", "HX-Target": "judging"}).content.decode()
    assert collapse_spaces(panel).startswith("<p") and "0 of 2 steps" in panel


def test_a_step_says_how_many_are_correct_and_by_which_rule(client: Client, owner: User, run: Run) -> None:
    client.force_login(owner)
    address = f"/runs/{run.uid}/steps/1/"
    page = client.get(address).content.decode()
    assert '<b>3</b><span class="muted">of 4</span>' in collapse_spaces(page)
    assert "acc=1 if logged, else score&gt;0" in page
    post_rule(client, "score>=0.5")
    assert "re-evaluating" in client.get(address).content.decode()
    correctness.evaluate_due_steps(run.project_id)
    page = client.get(address).content.decode()
    assert re.search(r"<summary[^>]*><b>2</b>", collapse_spaces(page))
    assert "<code>score&gt;=0.5</code>" in page and "re-evaluating" not in page


def test_a_page_cached_before_the_change_is_sent_again(client: Client, owner: User, run: Run) -> None:
    client.force_login(owner)
    address = f"/runs/{run.uid}/steps/1/?q=is:correct"
    before = client.get(address)
    correctness.change_correctness_rule(run.project, "score>=0.5", owner)
    result = client.get(address, headers={"If-None-Match": before.headers["ETag"]})
    assert (result.status_code, "re-evaluating" in result.content.decode()) == (200, True)
    correctness.evaluate_due_steps(run.project_id)
    after = client.get(address, headers={"If-None-Match": before.headers["ETag"]})
    assert after.status_code == 200
    assert '<b>2</b><span class="muted">of 4 recorded samples' in collapse_spaces(after.content.decode())


def test_a_query_for_correct_says_which_rule_it_uses(client: Client, owner: User, run: Run) -> None:
    client.force_login(owner)
    post_rule(client, "score>=0.5")
    page = client.get(f"/runs/{run.uid}/steps/1/?q=is:wrong").content.decode()
    assert "uses the rule of math: <code>score&gt;=0.5</code>" in page
    notes = client.get(f"/api/v1/samples/?run={run.uid}&q=is:wrong").json()["notes"]
    assert notes == ["“Correct” uses the rule of math: `score>=0.5`."]


def test_the_api_changes_the_rule_and_returns_the_progress(
    project: Project, run: Run, sent_projects: list[int]
) -> None:
    maintainer = builders.member(project, "maria", "maintainer")
    api = ApiClient.with_token(maintainer, "read", "admin", on=project)
    changed = api("PATCH", "projects/math/", {"correct": " score>=0.5 "}).json()
    assert changed["correct"] == "score>=0.5"
    assert changed["judging"] == {"rule": "score>=0.5", "steps": 2, "judged": 0}
    assert sent_projects == [project.pk]
    correctness.evaluate_due_steps(project.pk)
    assert api("GET", "projects/math/").json()["judging"]["judged"] == 2
    refused = api("PATCH", "projects/math/", {"correct": "is:wrong"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "correct")
