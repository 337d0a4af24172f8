"""The list of runs: in few queries, in pages, with any parameter."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.runs import views
from rollouts.models import Project, Run
from tests.dashboard.pages.runs.support import LR, SCORE, create_runs, get_page, read_run_names
from tests.support import builders
from tests.support.html import collapse_spaces


def test_two_hundred_runs_with_columns_of_config_and_metrics_take_as_few_queries_as_two(
    project: Project, owner_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    create_runs(project, 200)
    with django_assert_max_num_queries(18):
        page = get_page(owner_client, f"/?group=none&col=status&col=score&col=curve&col={LR}&col={SCORE}&sort=-{SCORE}")
    assert read_run_names(page) == [f"run-{number}" for number in range(199, 199 - views.PAGE_ROWS, -1)]


def test_a_long_list_comes_in_pages(runs: list[Run], owner_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_ROWS", 2)
    first, middle, last = (
        collapse_spaces(get_page(owner_client, f"/?group=none&sort=name&start={start}")) for start in (0, 2, 4)
    )
    assert [read_run_names(page) for page in (first, last)] == [["run-000", "run-001"], ["run-004", "run-005"]]
    assert [">previous<" in page for page in (first, middle, last)] == [False, True, True]
    assert [">next<" in page for page in (first, middle, last)] == [True, True, False]
    assert "rows 3–4 of 6" in middle


def test_a_silent_run_is_shown_with_no_heartbeat(runs: list[Run], owner_client: Client) -> None:
    """The filter and the API call it `silent`."""
    page = collapse_spaces(get_page(owner_client, "/?name=status:silent&group=status"))
    assert page.count('<span class="dot silent"></span><span>no heartbeat</span>') == len(read_run_names(page)) == 3
    assert "<b>no heartbeat</b>" in page and ">silent<" not in page


def test_no_parameter_breaks_the_list(runs: list[Run], owner_client: Client) -> None:
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
        assert owner_client.get(f"/?{query}").status_code in (200, 302), query


def test_hostile_text_of_a_trainer_is_escaped(project: Project, owner_client: Client) -> None:
    bad = "<script>alert(1)</script>"
    builders.run(project, bad, uid="uid-bad", tags=[bad], config={bad: bad}, framework=bad)
    page = get_page(
        owner_client, f"/?col=tags&col=framework&col={quote('config:' + bad)}&group={quote('config:' + bad)}"
    )
    picker = owner_client.get("/", headers={"HX-Request": "true", "HX-Target": "columns"}).content.decode()
    assert bad not in page + picker
    assert "&lt;script&gt;" in page
