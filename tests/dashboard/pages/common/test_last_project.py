"""Pages that need a project open with the one that was used last."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from rollouts.models import Project, Run
from tests.support import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(project: Project, client: Client) -> list[Run]:
    """A run in each of three projects; the user owns `math` and `zeta`, and annotates in `prose`."""
    owner = builders.member(project, "olga", "owner")
    projects = [project, builders.project("prose"), builders.project("zeta")]
    for other, role in zip(projects[1:], ("annotator", "owner"), strict=True):
        other.memberships.create(user=owner, role=role)
    client.force_login(owner)
    return [builders.run(owned, f"run-{owned.slug}", uid=f"uid-{owned.slug}") for owned in projects]


def find_project(client: Client, url: str) -> str:
    page = client.get(url).content.decode()
    patterns = {
        "/search/": r"<option selected>(\w+)<",
        "/pins/": r'name="project" value="(\w+)"',
        "/audit/": r'name="project" value="(\w+)"',
    }
    found = re.search(patterns[url], page)
    assert found, url
    return found[1]


def test_a_new_browser_gets_the_project_with_the_newest_run(runs: list[Run], client: Client) -> None:
    assert {url: find_project(client, url) for url in ("/search/", "/pins/", "/audit/")} == dict.fromkeys(
        ("/search/", "/pins/", "/audit/"), "zeta"
    )


@pytest.mark.parametrize("visit", ["/runs/uid-math/", "/?project=math", "/settings/math/", "/search/?project=math"])
def test_visiting_a_page_of_a_project_remembers_the_project(runs: list[Run], client: Client, visit: str) -> None:
    assert client.get(visit).status_code == 200
    assert {find_project(client, url) for url in ("/search/", "/pins/", "/audit/")} == {"math"}


def test_the_audit_log_opens_the_newest_project_that_the_user_owns(runs: list[Run], client: Client) -> None:
    client.get("/runs/uid-prose/")
    assert find_project(client, "/search/") == "prose"
    assert find_project(client, "/audit/") == "zeta", "an annotator of prose may not read its log"


def test_a_remembered_project_that_the_user_has_left_is_not_opened(
    runs: list[Run], client: Client, stranger: object
) -> None:
    client.get("/runs/uid-math/")
    Project.objects.get(slug="math").memberships.all().delete()
    assert find_project(client, "/search/") == "zeta"
    client.cookies["project"] = "%00%F0nothing"
    assert find_project(client, "/search/") == "zeta"
