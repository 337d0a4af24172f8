"""The list of runs: filtered, grouped, with columns of one's own, in few queries; and many runs changed at once."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard.api.base import Params
from dashboard.api.views.runs import update_run
from dashboard.pages.runs import views
from rollouts.metrics import series
from rollouts.models import AuditEntry, Pin, Project, Run, Step
from rollouts.runs import actions
from rollouts.samples.record import MetricPoint
from tests.dashboard.support.api_client import Ask
from tests.support import builders
from tests.support.html import squeeze

LR = "config:actor.optim.lr"
SCORE = "last:critic/score/mean"


def many(project: Project, count: int) -> list[Run]:
    """Runs that differ in a config key; half of them have been silent for an hour."""
    created = [
        builders.run(
            project,
            f"run-{n:03}",
            config={"actor": {"optim": {"lr": [1e-6, 3e-6][n % 2]}}, "n": 8},
            tags=["even"][n % 2 :],
        )
        for n in range(count)
    ]
    attempts = [builders.attempt(run) for run in created]
    rows = [
        Step(run=run, attempt=attempt, split="train", step=step, samples=4, score_mean=n / 10 + step / 100)
        for n, (run, attempt) in enumerate(zip(created, attempts, strict=True))
        for step in (1, 2, 3)
    ]
    Step.objects.bulk_create(rows)
    for n, (run, attempt) in enumerate(zip(created, attempts, strict=True)):
        series.append_points(run, attempt, [MetricPoint(step, {"critic/score/mean": n + step / 10}) for step in (1, 2)])
    quiet = [run.pk for run in created[::2]]
    Run.objects.filter(pk__in=quiet).update(seen_at=timezone.now() - timedelta(hours=1))
    return created


def names(page: str) -> list[str]:
    """The listed runs, in order."""
    return re.findall(r'class="run-name"[^>]*><b>([^<]*)</b>', squeeze(page))


def body(client: Client, url: str, status: int = 200) -> str:
    answer = client.get(url)
    assert answer.status_code == status, (url, answer.status_code)
    return answer.content.decode()


@pytest.fixture
def runs(project: Project) -> list[Run]:
    return many(project, 6)


@pytest.fixture
def at(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


def test_two_hundred_runs_with_columns_of_config_and_metrics_take_as_few_queries_as_two(
    project: Project, at: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    many(project, 200)
    with django_assert_max_num_queries(22):
        page = body(at, f"/?col=status&col=score&col={LR}&col={SCORE}&sort=-{SCORE}")
    assert len(names(page)) == 200
    assert names(page)[0] == "run-199"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("run-00", 6), ("003", 1), ("tag:even", 3), ("-tag:even", 3), ("status:silent", 3), ('"run-001"', 1),
        ("actor.optim.lr=0.000001", 3), ("actor.optim.lr=1e-6 tag:even 002", 1), ("n=8", 6), ("n=9", 0),
        ("nothing=1", 0), ("owner:olga", 0),
        ("a:b", 0), ("-", 6), ('tag:"', 0), ("=", 0),
    ],
)  # fmt: skip
def test_words_of_the_filter_say_what_is_listed(runs: list[Run], at: Client, words: str, found: int) -> None:
    assert len(names(body(at, f"/?name={quote(words)}"))) == found


def test_chosen_columns_show_and_sort_by_config_and_last_values(runs: list[Run], at: Client) -> None:
    page = body(at, f"/?col={LR}&col={SCORE}&sort={SCORE}")
    assert names(page) == [f"run-{n:03}" for n in range(6)]
    assert "1e-06" in page
    assert "5.200" in page
    assert ">status<" not in page


def test_what_has_no_value_stands_last_in_either_order(runs: list[Run], project: Project, at: Client) -> None:
    builders.run(project, "bare")
    for sort in (SCORE, f"-{SCORE}", LR, f"-{LR}"):
        assert names(body(at, f"/?sort={sort}"))[-1] == "bare"


def test_a_filter_that_is_typed_stands_in_the_address(runs: list[Run], at: Client) -> None:
    response = at.get("/?name=tag:even&project=&group=&show=", headers={"HX-Request": "true", "HX-Target": "runs"})
    assert response.headers["HX-Replace-Url"] == "/?name=tag:even"
    assert "<html" not in response.content.decode()


def test_a_long_list_comes_in_pages(runs: list[Run], at: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_ROWS", 2)
    first, middle, last = (squeeze(body(at, f"/?sort=name&start={start}")) for start in (0, 2, 4))
    assert [names(page) for page in (first, last)] == [["run-000", "run-001"], ["run-004", "run-005"]]
    assert [">previous<" in page for page in (first, middle, last)] == [False, True, True]
    assert [">next<" in page for page in (first, middle, last)] == [True, True, False]
    assert "3–4 of 6 runs" in middle


def test_a_silent_run_is_shown_with_no_heartbeat(runs: list[Run], at: Client) -> None:
    """The filter and the API call it `silent`."""
    page = squeeze(body(at, "/?name=status:silent&group=status"))
    assert page.count('<span class="dot silent"></span><span>no heartbeat</span>') == len(names(page)) == 3
    assert "<b>no heartbeat</b>" in page and ">silent<" not in page


def test_groups_put_runs_of_one_value_together_with_their_mean_score(runs: list[Run], at: Client) -> None:
    page = body(at, f"/?group={LR}&sort=name")
    assert names(page) == ["run-000", "run-002", "run-004", "run-001", "run-003", "run-005"]
    assert "<b>1.0e-06</b>" in squeeze(page)
    assert "3 runs · mean score 0.23" in squeeze(page)


def test_values_that_sort_alike_are_groups_of_their_own(project: Project, at: Client) -> None:
    for name, opt in (("a", "Adam"), ("b", "adam"), ("c", "Adam")):
        builders.run(project, name, config={"opt": opt})
    page = body(at, "/?group=config:opt&sort=name")
    assert names(page) == ["a", "c", "b"]
    assert page.count('class="group-head"') == 2


def test_columns_are_remembered_and_then_stand_in_the_address(runs: list[Run], at: Client) -> None:
    response = at.get(f"/?remember=1&col={LR}&col=owner&name=run")
    assert response.headers["Location"] == f"/?name=run&col={LR}&col=owner"
    assert at.get("/").headers["Location"] == f"/?col={LR}&col=owner"
    assert at.get("/?remember=1&usual=1").headers["Location"] == "/?"
    assert ">status<" in body(at, "/")


def test_the_picker_offers_first_what_differs(runs: list[Run], at: Client) -> None:
    page = at.get("/", headers={"HX-Request": "true", "HX-Target": "columns"}).content.decode()
    differing, alike = page.index(f'value="{LR}"'), page.index('value="config:n"')
    assert differing < alike
    assert f'value="{SCORE}"' in page
    assert "<html" not in page


def test_no_parameter_breaks_the_list(runs: list[Run], at: Client) -> None:
    odd = (
        "sort=%00",
        "sort=-",
        "group=zzz",
        "col=",
        "col=config:",
        "col=%ED%A0%80",
        "start=-1",
        "start=99999999",
        "show=x",
    )
    for query in (*odd, "name=%00", "project=%00", "col=" + "&col=config:x" * 500, "name=" + "a" * 5000):
        assert at.get(f"/?{query}").status_code in (200, 302), query


def test_hostile_words_of_a_trainer_stay_text(project: Project, at: Client) -> None:
    bad = "<script>alert(1)</script>"
    builders.run(project, bad, uid="uid-bad", tags=[bad], config={bad: bad}, framework=bad)
    page = body(at, f"/?col=tags&col=framework&col={quote('config:' + bad)}&group={quote('config:' + bad)}")
    picker = at.get("/", headers={"HX-Request": "true", "HX-Target": "columns"}).content.decode()
    assert bad not in page + picker
    assert "&lt;script&gt;" in page


# --- many at once -----------------------------------------------------------------------------------------------------


def act(client: Client, what: str, found: list[Run], **more: str) -> str:
    response = client.post("/tidy/", {"do": what, "run": [run.uid for run in found], **more}, follow=True)
    return response.content.decode()


def test_runs_get_and_lose_a_tag_together(runs: list[Run], at: Client) -> None:
    assert "Tag baseline added to 2 runs." in act(at, "tag", runs[:2], tag="baseline")
    assert "Tag baseline added to 0 runs." in act(at, "tag", runs[:2], tag="baseline")
    assert names(body(at, "/?name=tag:baseline&sort=name")) == ["run-000", "run-001"]
    act(at, "untag", runs[:1], tag="baseline")
    assert names(body(at, "/?name=tag:baseline")) == ["run-001"]
    assert AuditEntry.objects.filter(verb="run.tag").count() == 2


def test_an_archived_run_leaves_the_list_and_comes_back(runs: list[Run], at: Client) -> None:
    act(at, "archive", runs[:2])
    assert len(names(body(at, "/"))) == 4
    assert names(body(at, "/?show=archived&sort=name")) == ["run-000", "run-001"]
    assert at.get(f"/runs/{runs[0].uid}/").status_code == 200
    act(at, "unarchive", runs[:1])
    assert len(names(body(at, "/"))) == 5


def test_deleting_says_what_goes_and_the_bin_gives_it_back(runs: list[Run], at: Client) -> None:
    page = act(at, "delete", runs[:2])
    assert "Delete 2 runs?" in page
    assert '<td class="num">3</td><td class="num">12</td>' in squeeze(page)
    assert Run.objects.filter(deleted_at=None).count() == 6
    response = at.post("/tidy/delete/", {"run": [run.uid for run in runs[:2]]}, follow=True)
    assert "2 runs moved to Trash" in response.content.decode()
    assert names(body(at, "/?show=bin&sort=name")) == ["run-000", "run-001"]
    act(at, "restore", runs[:1])
    assert len(names(body(at, "/"))) == 5


def test_nothing_is_deleted_while_one_of_the_runs_is_pinned(runs: list[Run], at: Client, owner: User) -> None:
    run = runs[1]
    Pin.objects.create(project=run.project, run=run, attempt=run.attempts.get(), step=1, user=owner)
    assert "1 PINNED" in act(at, "delete", runs[:2])
    response = at.post("/tidy/delete/", {"run": [item.uid for item in runs[:2]]})
    assert response.status_code == 409
    assert "steps of run-001 are pinned" in response.content.decode()
    assert not Run.objects.exclude(deleted_at=None).exists()


def test_a_pin_that_is_set_while_runs_are_deleted_keeps_them_all(
    runs: list[Run], at: Client, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = runs[:2]
    into_bin = actions.move_run_to_trash

    def pinned_meanwhile(run: Run, by: User) -> Run:
        position = {"run": second, "attempt": second.attempts.get(), "step": 1}
        Pin.objects.get_or_create(**position, defaults={"project": second.project, "user": owner})
        return into_bin(run, by)

    monkeypatch.setattr(actions, "move_run_to_trash", pinned_meanwhile)
    response = at.post("/tidy/delete/", {"run": [first.uid, second.uid]})
    assert response.status_code == 409 and "Pinned steps: 1. Remove the pins first" in response.content.decode()
    assert not Run.objects.exclude(deleted_at=None).exists()


def test_an_annotator_changes_no_run_and_a_stranger_finds_none(
    runs: list[Run], client: Client, mate: User, stranger: User
) -> None:
    client.force_login(mate)
    assert "This needs the maintainer role" in act(client, "tag", runs, tag="x")
    assert client.post("/tidy/delete/", {"run": runs[0].uid}).status_code == 403
    assert 'value="archive"' not in body(client, "/")
    client.force_login(stranger)
    assert "Select runs first" in act(client, "archive", runs)
    actions.move_run_to_trash(runs[0], mate)
    assert "Select runs first" in act(client, "restore", runs)
    assert not Run.objects.exclude(archived_at=None).exists()
    assert all("x" not in run.tags for run in Run.objects.all())


def test_selected_runs_are_compared_and_drawn_together(runs: list[Run], at: Client) -> None:
    two = {"run": [run.uid for run in runs[:2]]}
    one, other = (run.uid for run in runs[:2])
    assert (
        at.post("/tidy/", {"do": "compare", **two}).headers["Location"] == f"/compare/?of={one}@latest,{other}@latest"
    )
    assert at.post("/tidy/", {"do": "overlay", **two}).headers["Location"] == f"/runs/{one}/?runs={other}"


def test_the_api_archives_a_run_and_names_its_owner(project: Project, owner: User) -> None:
    ask = Ask.with_token(owner, "read", "ingest")
    data = ask("POST", "runs/", {"project": "math", "name": "grpo"}).json()
    assert ask("GET", f"runs/{data['id']}/").json()["owner"] == "olga"
    body_data = ask("PATCH", f"runs/{data['id']}/", {"archived": True}).json()
    assert body_data["archived_at"]
    assert ask("GET", "runs/?archived=false").json()["count"] == 0
    assert ask("GET", "runs/?archived=true").json()["results"][0]["id"] == data["id"]
    assert ask("PATCH", f"runs/{data['id']}/", {"archived": False}).json()["archived_at"] is None
    assert ask("PATCH", f"runs/{data['id']}/", {"archived": "perhaps"}).status_code == 400


def test_a_change_leaves_alone_what_it_does_not_tell(project: Project, owner: User) -> None:
    run = builders.run(project, tags=["old"])
    project.runs.update(tags=["new"])  # by somebody else, after the request had read its row
    update_run(run, Params({"name": "renamed"}))
    assert project.runs.values_list("name", "tags").get() == ("renamed", ["new"])
