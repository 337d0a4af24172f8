"""A maintainer indexes dumps again that could not be read, or that an older server read."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.indexing import indexer
from rollouts.models import AuditEntry, Dump, Project, Run, Sample
from tests.dashboard.support.api_client import ApiClient, create_filled_run
from tests.support import builders

pytestmark = pytest.mark.django_db
BUTTON = '<button class="small" name="do" value="index"'


@pytest.fixture
def run(project: Project) -> Run:
    """A run with two dumps. The second one could not be read when it arrived."""
    run = create_filled_run(project)
    Dump.objects.filter(step=2).update(state="failed", message="No format recognises it.")
    return run


@pytest.fixture
def maintainer_client(client: Client, project: Project) -> Client:
    client.force_login(builders.member(project, "mara", "maintainer"))
    return client


def test_a_failed_dump_is_indexed_again_from_the_overview(run: Run, maintainer_client: Client) -> None:
    address = f"/runs/{run.uid}/"
    assert BUTTON in maintainer_client.get(address).content.decode()
    before = set(Sample.objects.values_list("pk", flat=True))
    response = maintainer_client.post("/tidy/", {"do": "index", "run": run.uid, "next": address}, follow=True)
    assert response.redirect_chain == [(address, 302)]
    assert "Re-indexing 2 dumps." in response.content.decode()
    assert {(dump.state, dump.message) for dump in Dump.objects.all()} == {("received", "")}
    for pk in Dump.objects.values_list("pk", flat=True):
        indexer.index_dump(pk)
    assert set(Sample.objects.values_list("pk", flat=True)) == before
    assert not Dump.objects.exclude(state="indexed").exists()
    assert BUTTON not in maintainer_client.get(address).content.decode()
    entry = AuditEntry.objects.get(verb="run.index")
    assert (entry.user and entry.user.get_username(), entry.detail["dumps"]) == ("mara", 2)


def test_the_run_list_offers_reindexing_to_maintainers_and_not_in_the_trash(
    run: Run, maintainer_client: Client, mate: User
) -> None:
    assert BUTTON in maintainer_client.get("/").content.decode()
    assert BUTTON not in maintainer_client.get("/?show=bin").content.decode()
    maintainer_client.force_login(mate)
    assert BUTTON not in maintainer_client.get("/").content.decode()
    assert BUTTON not in maintainer_client.get(f"/runs/{run.uid}/").content.decode()
    message = maintainer_client.post("/tidy/", {"do": "index", "run": run.uid}, follow=True).content.decode()
    assert "This needs the maintainer role" in message
    assert Dump.objects.filter(state="failed").count() == 1


def test_the_api_returns_how_many_dumps_it_indexes_again(run: Run, owner: User) -> None:
    api = ApiClient.with_token(owner, "ingest")
    assert api("POST", f"runs/{run.uid}/index/").json() == {"dumps": 2}
    assert api("POST", f"runs/{run.uid}/index/").json() == {"dumps": 0}
    assert api("POST", f"runs/{run.uid}/index/", {"step": 1}).status_code == 400
