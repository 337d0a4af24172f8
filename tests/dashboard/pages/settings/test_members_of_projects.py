"""Members are added to several projects in one form; users see only the controls that they may use."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Membership, Project
from tests.support import builders


def get_page(client: Client, url: str) -> str:
    return client.get(url).content.decode()


def get_roles(name: str) -> dict[str, str]:
    return dict(Membership.objects.filter(user__username=name).values_list("project__slug", "role"))


def test_a_person_is_added_to_several_projects_in_one_form(project: Project, owner: User, client: Client) -> None:
    other = builders.project("code")
    Membership.objects.create(project=other, user=owner, role="owner")
    client.force_login(owner)
    assert "Add a member to several projects" in get_page(client, "/settings/")
    answer = client.post("/members/", {"user": "nina", "role": "annotator", "project": ["math", "code"]})
    assert get_roles("nina") == {"math": "annotator", "code": "annotator"}
    assert "/sign-in/link/" in answer.content.decode() and answer.headers["Cache-Control"] == "no-store"
    again = client.post("/members/", {"user": "nina", "role": "viewer", "project": ["code"]}, follow=True)
    assert "nina is viewer of code." in again.content.decode()
    assert get_roles("nina") == {"math": "annotator", "code": "viewer"}


def test_one_project_of_another_owner_refuses_the_whole_form(project: Project, owner: User, client: Client) -> None:
    foreign = builders.project("code")
    client.force_login(owner)
    assert client.post("/members/", {"user": "nina", "role": "viewer", "project": ["math", "code"]}).status_code == 404
    Membership.objects.create(project=foreign, user=owner, role="maintainer")
    assert client.post("/members/", {"user": "nina", "role": "viewer", "project": ["math", "code"]}).status_code == 403
    assert not User.objects.filter(username="nina").exists()
    html = client.post("/members/", {"user": "nina", "role": "annotator"}).content.decode()
    assert "Choose a role and at least one project." in html
    assert 'value="nina"' in html and re.search(r"selected>annotator", html), "what was typed stays"
    assert not User.objects.filter(username="nina").exists()


def test_a_member_sees_no_section_without_controls(project: Project, owner: User, client: Client) -> None:
    for name, role in (("vera", "viewer"), ("anna", "annotator")):
        client.force_login(builders.member(project, name, role))
        shown = get_page(client, "/settings/") + get_page(client, "/settings/math/")
        assert all(text not in shown for text in ("Create project", "<h2>Tokens", "API tokens", "<h2>Correctness rule"))
        assert "The rule is <code>" in shown and "Flag reasons: reward hack" in shown
    client.force_login(builders.member(project, "mara", "maintainer"))
    shown = get_page(client, "/settings/") + get_page(client, "/settings/math/")
    assert all(text in shown for text in ("Create project", "Create token", "Save rule", "Save reasons"))


def test_a_user_without_a_project_may_create_one(db: None, client: Client) -> None:
    client.force_login(User.objects.create_user("nobody"))
    assert "Create project" in get_page(client, "/settings/")


def test_adding_a_member_again_does_not_change_the_role(project: Project, owner: User, client: Client) -> None:
    client.force_login(owner)
    client.post("/settings/math/members/", {"user": "nina", "role": "maintainer", "new": "1"})
    again = client.post("/settings/math/members/", {"user": "nina", "role": "viewer", "new": "1"}, follow=True)
    assert again.status_code == 400 and "nina is maintainer of this project already." in again.content.decode()
    assert 'value="nina" aria-invalid="true"' in again.content.decode(), "what was typed stays"
    client.post("/settings/math/members/", {"user": "nina", "role": "viewer"})  # the menu in the list of members
    assert get_roles("nina") == {"math": "viewer"}


def test_full_width_letters_of_an_input_method_are_normalised(project: Project, owner: User, client: Client) -> None:
    client.force_login(owner)
    for role in ("viewer", "annotator"):
        assert client.post("/settings/math/members/", {"user": "ｎｉｎａ", "role": role}).status_code < 400
    assert get_roles("nina") == {"math": "annotator"}


def test_a_project_may_be_called_password(owner: User, client: Client) -> None:
    Membership.objects.create(project=builders.project("password"), user=owner, role="owner")
    client.force_login(owner)
    assert "Members" in get_page(client, "/settings/password/")


def test_opening_the_url_of_a_form_is_explained(project: Project, owner: User, client: Client) -> None:
    client.force_login(owner)
    answer = client.get("/settings/math/members/link/")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert "This address only receives a form." in answer.content.decode()
    shown = client.post("/settings/math/members/", {"user": "nina", "role": "viewer", "new": "1"}).content.decode()
    assert "/sign-in/link/" in shown and "data-language-switch" not in shown  # it would lose the link
