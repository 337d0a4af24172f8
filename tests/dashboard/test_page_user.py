"""Requests of an open page after another user, or nobody, has signed in in the same browser."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project

FORM_TYPE = "application/x-www-form-urlencoded"


def test_a_form_of_another_user_is_not_saved(project: Project, owner: User, mate: User) -> None:
    """Another user has signed in in the same browser, while a request of the previous page still waits."""
    client = Client()
    client.force_login(owner)
    form = {"reasons": "new reason"}
    refused = client.post("/settings/math/reasons/", form, headers={"X-Rolloutdeck-User": str(mate.pk)})
    assert (refused.status_code, refused.json()["code"]) == (403, "other_user")
    project.refresh_from_db()
    assert "new reason" not in str(project.reasons)
    assert f'data-user="{owner.pk}"' in client.get("/").content.decode()
    client.post("/settings/math/reasons/", form, headers={"X-Rolloutdeck-User": str(owner.pk)})
    project.refresh_from_db()
    assert "new reason" in str(project.reasons)


def test_a_plain_form_says_whose_page_it_is(project: Project, owner: User, mate: User) -> None:
    client = Client()
    client.force_login(owner)
    form = {"reasons": "new reason", "page_user": str(mate.pk)}
    refused = client.post("/settings/math/reasons/", urlencode(form), content_type=FORM_TYPE)
    assert refused.status_code == 403 and "Another person has signed in" in refused.content.decode()
    form["page_user"] = str(owner.pk)
    assert client.post("/settings/math/reasons/", urlencode(form), content_type=FORM_TYPE).status_code == 302


@pytest.mark.parametrize(
    ("headers", "code"),
    [({}, "session_expired"), ({"Origin": "http://elsewhere.example"}, "other_address")],
)
def test_the_error_code_says_whether_sending_again_may_help(owner: User, headers: dict[str, str], code: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    refused = client.post("/settings/math/reasons/", {}, headers={"Accept": "application/json", **headers})
    assert (refused.status_code, refused.json()["code"]) == (403, code)
