"""Saved views: saved, opened, listed where they are used, shared with a project, changed by their owner."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import AuditEntry, Membership, Project, Run, SavedView
from rollouts.saved_views import saved_views
from tests.dashboard.support.api_client import ApiClient
from tests.support import builders


def save_view(client: Client, name: str, page: str = "runs", params: str = "?q=score>0.5", **more: str) -> str:
    fields = {"name": name, "page": page, "params": params, **more}
    return client.post("/views/save/", fields, follow=True).content.decode()


def get_menu(client: Client, page: str = "runs", run: Run | None = None) -> str:
    return client.get(f"/views/?page={page}" + (f"&run={run.uid}" if run else "")).content.decode()


def test_a_view_is_saved_listed_with_its_count_and_opened(run: Run, reader: Client) -> None:
    assert "View grpo runs saved." in save_view(reader, "grpo runs", params="?q=name:grpo&sort=name&start=3&sel=x")
    view = SavedView.objects.get()
    assert (view.params, view.shared, view.project) == ("q=name%3Agrpo&sort=name", False, None)
    assert reader.get(f"/views/{view.pk}/").headers["Location"] == "/?q=name%3Agrpo&sort=name"
    assert f'href="/?{view.params.replace("&", "&amp;")}"' in get_menu(reader)
    page = reader.get("/").content.decode()
    assert "grpo runs" in page and "<b>1</b>" in page
    assert "grpo runs" in str(reader.get("/go/?q=grpo runs").json()["results"])


def test_the_count_of_a_shared_view_is_that_of_the_runs_it_opens(run: Run, reader: Client, mate: User) -> None:
    other = builders.project("code")
    Membership.objects.create(project=other, user=mate, role="annotator")
    builders.run(other)
    save_view(reader, "all grpo", params="?q=name:grpo", project="math", shared="1")
    chip = reader.get("/").content.decode().partition("all grpo")[2][:60]
    assert "<b>2</b>" in chip
    assert 'href="/?q=name%3Agrpo"' in get_menu(reader)


def test_a_view_of_the_overview_keeps_its_sections_and_one_of_runs_no_folded_groups(run: Run, reader: Client) -> None:
    params = "?open=actor,critic&closed=timing_s&shut=abc"
    save_view(reader, "sections", "overview", params, project="math")
    save_view(reader, "groups", "runs", "?open=abc&shut=def&sort=name")
    views = dict(SavedView.objects.values_list("name", "params"))
    assert views["sections"].startswith("open=actor%2Ccritic&closed=timing_s") and views["groups"] == "sort=name"


def test_the_script_of_the_menu_gets_errors_as_json_and_messages_after_it(run: Run, reader: Client) -> None:
    fields, headers = {"name": "best", "page": "runs", "params": "?q=n<2"}, {"accept": "application/json"}
    refused = reader.post("/views/save/", {**fields, "shared": "1"}, headers=headers)
    assert refused.status_code == 400
    assert refused.json() == {"message": "Choose a project to share the view with."}
    assert "Choose a project" not in reader.get("/").content.decode()
    assert reader.post("/views/save/", fields, headers=headers).json() == {}
    assert "View best saved." in reader.get("/").content.decode()


def test_the_menu_selects_the_only_project(run: Run, reader: Client, mate: User) -> None:
    chosen = "<option selected>math</option>"
    assert chosen in get_menu(reader)
    Membership.objects.create(project=builders.project("zoo"), user=mate, role="viewer")
    assert chosen not in get_menu(reader)


def test_a_user_with_all_views_can_replace_one(run: Run, reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    save_view(reader, "best")
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 1)
    assert "View best saved." in save_view(reader, "best", params="?q=n<2")
    assert "Delete some first" in save_view(reader, "worst")
    assert list(SavedView.objects.values_list("name", "params")) == [("best", "q=n%3C2")]


def test_a_rename_does_not_share_a_view_again(run: Run, reader: Client, mate: User) -> None:
    """The owner of the project may stop sharing it at the same moment."""
    save_view(reader, "best", project="math", shared="1")
    view = SavedView.objects.get()
    SavedView.objects.update(shared=False)
    saved_views.update_view(view, mate, name="the best")
    view.refresh_from_db()
    assert (view.name, view.shared) == ("the best", False)


def test_the_same_name_replaces_the_view(run: Run, reader: Client) -> None:
    save_view(reader, "best", params="q=score>0.5")
    save_view(reader, "best", params="q=score>0.9")
    assert SavedView.objects.get().params == "q=score%3E0.9"


def test_a_view_of_a_step_opens_any_run_of_the_project(run: Run, reader: Client) -> None:
    for page, path in (("step", "steps/latest/"), ("all-steps", "steps/all/"), ("overview", "")):
        save_view(reader, page, page, "?q=is:truncated", project="math")
        view = SavedView.objects.get(page=page)
        assert f'href="/runs/{run.uid}/{path}?q=is%3Atruncated"' in get_menu(reader, page, run)
        assert reader.get(f"/views/{view.pk}/").headers["Location"] == f"/runs/{run.uid}/{path}?q=is%3Atruncated"
    other = builders.run(run.project, "other")
    assert reader.get(f"/views/{view.pk}/?run={other.uid}").headers["Location"].startswith(f"/runs/{other.uid}/")
    assert 'id="views-menu"' in reader.get(f"/runs/{run.uid}/").content.decode()


def test_only_members_see_shared_views_and_only_owners_private_ones(
    run: Run, reader: Client, mate: User, owner: User, stranger: User
) -> None:
    save_view(reader, "private one", project="math")
    save_view(reader, "shared one", project="math", shared="1")
    private, shared = SavedView.objects.order_by("shared")
    statuses = {}
    for user in (mate, owner, stranger):
        reader.force_login(user)
        statuses[user.username] = [reader.get(f"/views/{view.pk}/").status_code for view in (private, shared)]
        assert ("shared one" in get_menu(reader)) == (user != stranger)
        assert ("private one" in get_menu(reader)) == (user == mate)
    assert statuses == {mate.username: [302, 302], owner.username: [404, 302], stranger.username: [404, 404]}
    Membership.objects.filter(user=mate).delete()
    reader.force_login(mate)
    assert reader.get(f"/views/{shared.pk}/").status_code == 404


def test_only_owners_of_the_view_or_of_the_project_change_it(
    run: Run, reader: Client, mate: User, owner: User, project: Project
) -> None:
    save_view(reader, "loops", "step", project="math", shared="1")
    view = SavedView.objects.get()

    def change(action: str, **more: str) -> int:
        return reader.post(f"/views/{view.pk}/change/", {"do": action, **more}).status_code

    assert change("rename", name="repeats") == change("replace", params="?q=is:repetition") == 303
    view.refresh_from_db()
    assert (view.name, view.params) == ("repeats", "q=is%3Arepetition")
    reader.force_login(builders.member(project, "vera", "viewer"))
    assert change("delete") == 403
    reader.force_login(owner)
    assert change("delete") == 303
    assert not SavedView.objects.exists()
    assert AuditEntry.objects.get(verb="view.delete").detail == {"owner": mate.username}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": " "}, "Enter a name for the view."),
        ({"shared": "1"}, "Choose a project to share the view with."),
        ({"page": "nowhere"}, "page"),
        ({"project": "nowhere"}, ""),
    ],
)
def test_an_invalid_view_is_explained(reader: Client, fields: dict[str, str], message: str) -> None:
    assert message in save_view(reader, **{"name": "x", **fields})
    assert not SavedView.objects.exists()


def test_a_viewer_saves_private_views_and_shares_none(project: Project, client: Client) -> None:
    client.force_login(builders.member(project, "vera", "viewer"))
    assert "This needs the annotator role" in save_view(client, "x", project="math", shared="1")
    assert "View x saved." in save_view(client, "x", project="math")


def test_views_are_created_changed_and_deleted_by_the_api(run: Run, mate: User, owner: User, stranger: User) -> None:
    api = ApiClient.with_token(mate, "read", "annotate")
    body = {"page": "step", "name": "short", "params": "q=len<9", "project": "math", "shared": True}
    created = api("POST", "views/", body).json()
    assert (created["params"], created["owner"], created["project"]) == ("q=len%3C9", mate.username, "math")
    assert api("GET", "views/?project=math&on=step").json()["count"] == 1
    assert api("PATCH", f"views/{created['id']}/", {"name": "tiny"}).json()["name"] == "tiny"
    assert api("PATCH", f"views/{created['id']}/", {"params": 3}).status_code == 400
    assert ApiClient.with_token(stranger, "read")("GET", "views/").json()["count"] == 0
    assert ApiClient.with_token(stranger, "read")("GET", f"views/{created['id']}/").status_code == 404
    other = ApiClient.with_token(builders.member(run.project, "anna", "annotator"), "read", "annotate")
    assert other("DELETE", f"views/{created['id']}/").status_code == 403
    assert ApiClient.with_token(owner, "read", "annotate")("DELETE", f"views/{created['id']}/").status_code == 204
