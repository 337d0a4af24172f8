"""Many runs changed at once: tags, archive, trash, comparison."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.api.base import Params
from dashboard.api.views.runs import update_run
from dashboard.pages.runs import bulk_actions
from rollouts.models import AuditEntry, Pin, Project, Run
from rollouts.runs import actions
from tests.dashboard.pages.runs.support import get_page, read_run_names
from tests.dashboard.support.api_client import ApiClient
from tests.support import builders
from tests.support.html import collapse_spaces


def test_archiving_is_undone_from_its_message(runs: list[Run], owner_client: Client) -> None:
    page = change_runs(owner_client, "archive", runs[:2])
    assert "2 runs archived." in page
    form = dict(
        re.findall(
            r'name="(run|undo|do|next)" value="([^"]*)"', page.partition("inline-form")[2].partition("</form>")[0]
        )
    )
    assert form["do"] == "unarchive"
    answer = owner_client.post("/tidy/", form, follow=True).content.decode()
    assert "2 runs unarchived." in answer and "inline-form" not in answer
    assert not Run.objects.exclude(archived_at=None).exists()


def change_runs(client: Client, what: str, found: list[Run], **more: str) -> str:
    response = client.post("/tidy/", {"do": what, "run": [run.uid for run in found], **more}, follow=True)
    return response.content.decode()


def test_more_runs_than_can_be_changed_at_once_are_not_changed_in_part(
    runs: list[Run], owner_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_actions, "MAX_SELECTED_RUNS", 3)
    page = archive_in_one_field(owner_client, runs[:4])
    assert "At most 3 runs can be changed at once, not 4." in page
    assert not Run.objects.exclude(archived_at=None).exists()
    assert "2 runs archived." in archive_in_one_field(owner_client, runs[:2])


def archive_in_one_field(client: Client, runs: list[Run]) -> str:
    """Sends the runs as the page does: in one field, since Django limits the number of fields."""
    data = {"do": "archive", "run": ",".join(run.uid for run in runs)}
    return client.post("/tidy/", data, follow=True).content.decode()


def test_runs_get_and_lose_a_tag_together(runs: list[Run], owner_client: Client) -> None:
    assert "Tag baseline added to 2 runs." in change_runs(owner_client, "tag", runs[:2], tag="baseline")
    assert "Tag baseline added to 0 runs." in change_runs(owner_client, "tag", runs[:2], tag="baseline")
    assert read_run_names(get_page(owner_client, "/?name=tag:baseline&sort=name")) == ["run-000", "run-001"]
    change_runs(owner_client, "untag", runs[:1], tag="baseline")
    assert read_run_names(get_page(owner_client, "/?name=tag:baseline")) == ["run-001"]
    assert AuditEntry.objects.filter(verb="run.tag").count() == 2


def test_an_archived_run_leaves_the_list_and_comes_back(runs: list[Run], owner_client: Client) -> None:
    change_runs(owner_client, "archive", runs[:2])
    assert len(read_run_names(get_page(owner_client, "/"))) == 4
    assert read_run_names(get_page(owner_client, "/?show=archived&sort=name")) == ["run-000", "run-001"]
    assert owner_client.get(f"/runs/{runs[0].uid}/").status_code == 200
    change_runs(owner_client, "unarchive", runs[:1])
    assert len(read_run_names(get_page(owner_client, "/"))) == 5


def test_deleting_shows_what_is_lost_and_the_trash_restores_it(runs: list[Run], owner_client: Client) -> None:
    page = change_runs(owner_client, "delete", runs[:2])
    assert "Delete 2 runs?" in page
    assert '<td class="num">3</td><td class="num">12</td>' in collapse_spaces(page)
    assert Run.objects.filter(deleted_at=None).count() == 6
    response = owner_client.post("/tidy/delete/", {"run": [run.uid for run in runs[:2]]}, follow=True)
    assert "2 runs moved to Trash" in response.content.decode()
    assert read_run_names(get_page(owner_client, "/?show=bin&sort=name")) == ["run-000", "run-001"]
    change_runs(owner_client, "restore", runs[:1])
    assert len(read_run_names(get_page(owner_client, "/"))) == 5


def test_nothing_is_deleted_while_one_of_the_runs_is_pinned(runs: list[Run], owner_client: Client, owner: User) -> None:
    run = runs[1]
    Pin.objects.create(project=run.project, run=run, attempt=run.attempts.get(), step=1, user=owner)
    assert "1 PINNED" in change_runs(owner_client, "delete", runs[:2])
    response = owner_client.post("/tidy/delete/", {"run": [item.uid for item in runs[:2]]})
    assert response.status_code == 409
    assert "steps of run-001 are pinned" in response.content.decode()
    assert not Run.objects.exclude(deleted_at=None).exists()


def test_a_pin_that_is_set_while_runs_are_deleted_keeps_them_all(
    runs: list[Run], owner_client: Client, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = runs[:2]
    move_run_to_trash = actions.move_run_to_trash

    def pin_and_move_to_trash(run: Run, by: User) -> Run:
        position = {"run": second, "attempt": second.attempts.get(), "step": 1}
        Pin.objects.get_or_create(**position, defaults={"project": second.project, "user": owner})
        return move_run_to_trash(run, by)

    monkeypatch.setattr(actions, "move_run_to_trash", pin_and_move_to_trash)
    response = owner_client.post("/tidy/delete/", {"run": [first.uid, second.uid]})
    assert response.status_code == 409 and "Pinned steps: 1. Remove the pins first" in response.content.decode()
    assert not Run.objects.exclude(deleted_at=None).exists()


def test_an_annotator_changes_no_run_and_a_stranger_finds_none(
    runs: list[Run], client: Client, mate: User, stranger: User
) -> None:
    client.force_login(mate)
    assert "This needs the maintainer role" in change_runs(client, "tag", runs, tag="x")
    assert client.post("/tidy/delete/", {"run": runs[0].uid}).status_code == 403
    assert 'value="archive"' not in get_page(client, "/")
    client.force_login(stranger)
    assert "Select runs first" in change_runs(client, "archive", runs)
    actions.move_run_to_trash(runs[0], mate)
    assert "Select runs first" in change_runs(client, "restore", runs)
    assert not Run.objects.exclude(archived_at=None).exists()
    assert all("x" not in run.tags for run in Run.objects.all())


def test_selected_runs_are_compared_and_overlaid(runs: list[Run], owner_client: Client) -> None:
    two = {"run": [run.uid for run in runs[:2]]}
    left, right = (run.uid for run in runs[:2])
    assert (
        owner_client.post("/tidy/", {"do": "compare", **two}).headers["Location"]
        == f"/compare/?of={left}@latest,{right}@latest"
    )
    assert owner_client.post("/tidy/", {"do": "overlay", **two}).headers["Location"] == f"/runs/{left}/?runs={right}"


def test_the_api_archives_a_run_and_names_its_owner(project: Project, owner: User) -> None:
    api = ApiClient.with_token(owner, "read", "ingest")
    data = api("POST", "runs/", {"project": "math", "name": "grpo"}).json()
    assert api("GET", f"runs/{data['id']}/").json()["owner"] == "olga"
    archived = api("PATCH", f"runs/{data['id']}/", {"archived": True}).json()
    assert archived["archived_at"]
    assert api("GET", "runs/?archived=false").json()["count"] == 0
    assert api("GET", "runs/?archived=true").json()["results"][0]["id"] == data["id"]
    assert api("PATCH", f"runs/{data['id']}/", {"archived": False}).json()["archived_at"] is None
    assert api("PATCH", f"runs/{data['id']}/", {"archived": "perhaps"}).status_code == 400


def test_a_change_keeps_the_fields_that_it_does_not_name(project: Project, owner: User) -> None:
    run = builders.run(project, tags=["old"])
    project.runs.update(tags=["new"])  # by another user, after the request had read its row
    update_run(run, Params({"name": "renamed"}))
    assert project.runs.values_list("name", "tags").get() == ("renamed", ["new"])
