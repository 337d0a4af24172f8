"""The list of runs: in few queries, in pages, with any parameter."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.pages.runs import views
from rollouts.models import Project, Run
from tests.dashboard.pages.runs.support import LR, SCORE, body, many, names
from tests.support import builders
from tests.support.html import collapse_spaces


def test_two_hundred_runs_with_columns_of_config_and_metrics_take_as_few_queries_as_two(
    project: Project, at: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    many(project, 200)
    with django_assert_max_num_queries(18):
        page = body(at, f"/?group=none&col=status&col=score&col=curve&col={LR}&col={SCORE}&sort=-{SCORE}")
    assert names(page) == [f"run-{number}" for number in range(199, 199 - views.PAGE_ROWS, -1)]


def test_a_long_list_comes_in_pages(runs: list[Run], at: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PAGE_ROWS", 2)
    first, middle, last = (collapse_spaces(body(at, f"/?group=none&sort=name&start={start}")) for start in (0, 2, 4))
    assert [names(page) for page in (first, last)] == [["run-000", "run-001"], ["run-004", "run-005"]]
    assert [">previous<" in page for page in (first, middle, last)] == [False, True, True]
    assert [">next<" in page for page in (first, middle, last)] == [True, True, False]
    assert "rows 3–4 of 6" in middle


def test_a_silent_run_is_shown_with_no_heartbeat(runs: list[Run], at: Client) -> None:
    """The filter and the API call it `silent`."""
    page = collapse_spaces(body(at, "/?name=status:silent&group=status"))
    assert page.count('<span class="dot silent"></span><span>no heartbeat</span>') == len(names(page)) == 3
    assert "<b>no heartbeat</b>" in page and ">silent<" not in page


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
