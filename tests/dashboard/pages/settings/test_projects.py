"""Projects, members, tokens and reasons in the settings, without script."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from rollouts.errors import NotFoundError
from rollouts.ingest import open_run
from rollouts.models import AuditEntry, ForgottenPrompt, Project, Token
from rollouts.projects import delete_project
from tests.dashboard.support.sign_in import use_sign_in_link
from tests.support import builders


def test_the_creator_of_a_project_owns_it(client: Client, stranger: User) -> None:
    client.force_login(stranger)
    assert client.post("/settings/", {"slug": "code"}).headers["Location"] == "/settings/code/"
    assert Project.objects.get(slug="code").role_of(stranger) == "owner"


def test_an_invalid_project_name_is_explained_and_stays_in_its_field(client: Client, owner: User) -> None:
    client.force_login(owner)
    response = client.post("/settings/", {"slug": "Math Team"})
    page = response.content.decode()
    assert response.status_code == 400 and not Project.objects.filter(slug__icontains="team").exists()
    assert "The name of a project can contain only" in page and "for example math-team" in page
    (field,) = re.findall(r'<input id="slug"[^>]*>', page)
    assert 'value="Math Team"' in field and "autofocus" in field and 'aria-describedby="slug-error"' in field


def test_creating_a_project_with_a_taken_name_gives_no_role_in_it(
    client: Client, project: Project, stranger: User
) -> None:
    client.force_login(stranger)
    client.post("/settings/", {"slug": project.slug})
    assert project.role_of(stranger) == ""


def test_an_owner_invites_a_new_person_by_a_link(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    answer = client.post("/settings/math/members/", {"user": "nora", "role": "annotator"})
    link = re.search(r"<pre>(http[^<]*)</pre>", answer.content.decode())
    assert link and answer.headers["Cache-Control"] == "no-store"
    new = Client()
    use_sign_in_link(new, link[1])
    assert new.get("/settings/math/").status_code == 200


def test_an_owner_creates_a_lost_sign_in_link_again(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "nora", "role": "annotator"})
    answer = client.post("/settings/math/members/link/", {"user": "nora"})
    link = re.search(r"<pre>(http[^<]*)</pre>", answer.content.decode())
    assert link and answer.headers["Cache-Control"] == "no-store"
    new = Client()
    use_sign_in_link(new, link[1])
    assert new.get("/settings/math/").status_code == 200
    assert (
        "<pre>http" not in client.post("/settings/math/members/link/", {"user": "nora"}, follow=True).content.decode()
    )


def test_only_an_admin_creates_a_link_for_a_member_of_other_projects(
    client: Client, project: Project, owner: User, mate: User, stranger: User
) -> None:
    other = Project.objects.create(slug="code")
    other.memberships.create(user=mate, role="viewer")
    client.force_login(owner)
    answer = client.post("/settings/math/members/link/", {"user": mate.username}, follow=True).content.decode()
    assert "<pre>http" not in answer and "Only a server admin can create a sign-in link for mina" in answer
    client.force_login(User.objects.create_superuser("root"))
    mate.last_login = timezone.now()
    mate.save()
    assert "<pre>http" in client.post("/settings/math/members/link/", {"user": mate.username}).content.decode()
    assert client.post("/settings/math/members/link/", {"user": stranger.username}).status_code == 404


def test_roles_are_changed_by_owners_only(client: Client, project: Project, owner: User, mate: User) -> None:
    client.force_login(mate)
    assert client.post("/settings/math/members/", {"user": "mina", "role": "owner"}).status_code == 403
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "mina", "role": "viewer"})
    assert project.role_of(mate) == "viewer"
    client.post("/settings/math/members/", {"user": "mina", "role": ""})
    assert project.role_of(mate) == ""


def test_the_last_owner_cannot_be_removed(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    response = client.post("/settings/math/members/", {"user": "olga", "role": "viewer"}, follow=True)
    assert "last owner" in response.content.decode()


def test_no_account_is_created_for_an_unknown_role(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "nora", "role": "queen"})
    assert not User.objects.filter(username="nora").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a b", "A name can contain only letters"),
        ("a\0b", "A name can contain only letters"),
        ("n" * 151, "A name can have at most 150 characters"),
    ],
)
def test_an_invalid_user_name_is_refused_with_an_explanation(
    client: Client, project: Project, owner: User, name: str, message: str
) -> None:
    client.force_login(owner)
    response = client.post("/settings/math/members/", {"user": name, "role": "viewer"}, follow=True)
    assert message in response.content.decode()
    assert not User.objects.exclude(pk=owner.pk).exists()


def test_a_token_is_shown_once(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    page = client.post("/settings/math/tokens/", {"name": "cluster", "scopes": ["ingest", "read"]}).content.decode()
    secret = re.search(r"\brd_[\w-]+", page)
    assert secret
    assert Token.find(secret[0])
    assert secret[0] not in client.get("/settings/math/").content.decode()
    client.post(f"/settings/math/tokens/{Token.objects.get().pk}/revoke/")
    assert Token.find(secret[0]) is None


def test_a_token_expires_after_the_chosen_days(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    with time_machine.travel(timezone.now(), tick=False) as clock:
        form = {"name": "cluster", "scopes": ["read"], "days": "20"}
        page = client.post("/settings/math/tokens/", form).content.decode()
        secret = re.search(r"\brd_[\w-]+", page)
        assert secret and f"{timezone.now() + timedelta(days=20):%Y-%m-%d}" in page
        assert "Expires within two weeks" not in page
        clock.shift(timedelta(days=7))
        assert "Expires within two weeks: cluster." in client.get("/settings/math/").content.decode()
        clock.shift(timedelta(days=13))
        page = client.get("/settings/math/").content.decode()
        assert ">expired</span>" in page and "Expires within" not in page
        refused = Client().get("/api/v1/runs/", headers={"Authorization": f"Bearer {secret[0]}"})
        message = f"The token 'cluster' expired on {timezone.now():%Y-%m-%d}"
    assert refused.status_code == 401 and message in refused.json()["error"]["message"]


@pytest.mark.parametrize("days", ["0", "-1", "36501", "1.5", "x", "９"])
def test_days_that_are_no_number_in_range_are_refused(client: Client, project: Project, owner: User, days: str) -> None:
    client.force_login(owner)
    form = {"name": "cluster", "scopes": ["read"], "days": days}
    page = client.post("/settings/math/tokens/", form).content.decode()
    assert "must be a number from 1 to 36500" in page and not Token.objects.exists()
    assert 'value="cluster"' in page and re.search(r'value="read"\s+checked', page), "what was typed stays"


def test_a_token_needs_a_purpose_and_a_scope(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    refused = client.post("/settings/math/tokens/", {"name": " ", "scopes": ["read"]})
    assert refused.status_code == 400 and "“purpose” is required" in refused.content.decode()
    assert "“scopes” must be one or more of" in client.post("/settings/math/tokens/", {"name": "x"}).content.decode()


def test_maintainers_create_tokens_and_only_owners_create_admin_tokens(
    client: Client, project: Project, mate: User
) -> None:
    client.force_login(mate)
    assert client.post("/settings/math/tokens/", {"name": "x", "scopes": ["read"]}).status_code == 403
    client.force_login(builders.member(project, "mark", "maintainer"))
    assert client.post("/settings/math/tokens/", {"name": "x", "scopes": ["admin"]}).status_code == 403
    assert client.post("/settings/math/tokens/", {"name": "x", "scopes": ["read"]}).status_code == 200


def test_a_reason_that_stays_keeps_its_key(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    client.post("/settings/math/reasons/", {"reasons": "reward hack\ntoo short\n\ntoo short"})
    project.refresh_from_db()
    assert project.reasons == [
        {"key": "reward-hack", "name": "reward hack"},
        {"key": "too-short", "name": "too short"},
    ]


def test_similar_reasons_have_different_keys(client: Client, project: Project, owner: User) -> None:
    client.force_login(owner)
    long = "a" * 50
    client.post("/settings/math/reasons/", {"reasons": f"Reward Hack\nreward\0 hack!\nreward hack\n{long}\n{long}b"})
    project.refresh_from_db()
    assert {reason["name"]: reason["key"] for reason in project.reasons} == {
        "Reward Hack": "reward-hack-2",
        "reward hack!": "reward-hack-3",
        "reward hack": "reward-hack",
        long: "a" * 40,
        f"{long}b": "a" * 38 + "-2",
    }


def test_an_owner_deletes_a_project_without_runs(client: Client, project: Project, owner: User, mate: User) -> None:
    run, token = builders.run(project), builders.token(owner, "read", on=project)
    client.force_login(owner)
    path = "/settings/math/delete/"
    assert "The project has runs." in client.post(path, {"name": "math"}).content.decode()
    run.deleted_at = timezone.now()
    run.save()
    assert "can be restored for a week" in client.post(path, {"name": "math"}).content.decode()
    run.delete()
    client.post("/settings/math/correct/", {"correct": "score>0.5"})
    prompt = ForgottenPrompt.objects.create(project=project, key="k" * 26)
    assert "The project has forgotten prompts." in client.post(path, {"name": "math"}).content.decode()
    prompt.delete()
    wrong = client.post(path, {"name": "maths"})
    assert wrong.status_code == 400 and 'value="maths"' in wrong.content.decode()
    assert "Type the name of the project, math" in wrong.content.decode() and Project.objects.exists()
    client.force_login(mate)
    assert client.post(path, {"name": "math"}).status_code == 403

    client.force_login(owner)
    page = client.post(path, {"name": "math"}, follow=True).content.decode()
    assert "Project math is deleted." in page and not Project.objects.exists()
    assert AuditEntry.objects.filter(verb="project.delete", subject="math", user=owner, project=None).exists()
    assert AuditEntry.objects.get(verb="correct.set").detail["project"] == "math", "entries say whose they were"
    assert client.post(path, {"name": "math"}).status_code == 404
    with pytest.raises(NotFoundError, match="The project math was deleted"):
        open_run(project, name="new")  # a request that has found the project before
    with pytest.raises(NotFoundError, match="The project math was deleted"):
        delete_project(project, owner)
    refused = Client().get("/api/v1/runs/", headers={"Authorization": f"Bearer {token}"})
    assert refused.status_code == 401
