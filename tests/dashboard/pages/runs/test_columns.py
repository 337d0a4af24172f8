"""The columns of the run list: chosen, sorted, remembered, exported."""

from __future__ import annotations

import re

from django.test import Client

from rollouts.models import Project, Run, Step
from tests.dashboard.pages.runs.support import LR, SCORE, get_page, read_run_names
from tests.support import builders


def test_chosen_columns_show_and_sort_by_config_and_last_values(runs: list[Run], owner_client: Client) -> None:
    page = get_page(owner_client, f"/?group=none&col={LR}&col={SCORE}&sort={SCORE}")
    assert read_run_names(page) == [f"run-{n:03}" for n in range(6)]
    assert "1e-06" in page
    assert "5.200" in page
    assert ">status<" not in page


def test_config_keys_with_the_same_last_part_keep_their_names(project: Project, owner_client: Client) -> None:
    builders.run(project, config={"lr": 1e-6, "actor": {"lr": 1e-5, "clip": 0.2}})
    page = get_page(owner_client, "/?group=none&col=config:lr&col=config:actor.lr&col=config:actor.clip")
    titles = [re.sub(r"<[^>]*>", "", title).split() for title in re.findall(r"<th[^>]*>(.*?)</th>", page, re.S)]
    assert [title[0] for title in titles if title and title[0].endswith(("lr", "clip"))] == ["lr", "actor.lr", "clip"]


def test_runs_without_a_value_are_last_in_both_orders(runs: list[Run], project: Project, owner_client: Client) -> None:
    builders.run(project, "bare")
    for sort in (SCORE, f"-{SCORE}", LR, f"-{LR}"):
        assert read_run_names(get_page(owner_client, f"/?sort={sort}"))[-1] == "bare"


def test_the_table_is_exported_as_csv(project: Project, owner_client: Client) -> None:
    for n in range(3):
        run = builders.run(project, ["=cmd()", "b", "c"][n], config={"lr": n / 3}, tags=["x"])
        Step.objects.create(run=run, attempt=builders.attempt(run), split="train", step=1, samples=1, score_mean=n / 3)
    response = owner_client.get("/?col=score&col=config:lr&sort=name&q=tag:x&export=csv")
    assert response.headers["Content-Type"].startswith("text/csv")
    rows = response.content.decode().splitlines()
    assert rows[0] == "id,project,run,score,lr"
    assert rows[1] == "uid-math-=cmd(),math,'=cmd(),0.0,0.0"
    assert rows[3].endswith("c,0.6666666666666666,0.6666666666666666")


def test_columns_are_remembered_and_added_to_the_url(runs: list[Run], owner_client: Client) -> None:
    response = owner_client.get(f"/?remember=1&col={LR}&col=owner&name=run")
    assert response.headers["Location"] == f"/?q=run&col={LR}&col=owner"
    assert owner_client.get("/").headers["Location"] == f"/?col={LR}&col=owner"
    assert owner_client.get("/?remember=1&usual=1").headers["Location"] == "/?"
    assert ">status<" in get_page(owner_client, "/")


def test_without_scripts_the_picker_says_what_it_needs(runs: list[Run], owner_client: Client) -> None:
    page = owner_client.get("/").content.decode()
    assert '<noscript><p class="pad">To choose columns, turn on JavaScript.</p></noscript>' in page


def test_the_picker_lists_differing_keys_first(runs: list[Run], owner_client: Client) -> None:
    page = owner_client.get("/", headers={"HX-Request": "true", "HX-Target": "columns"}).content.decode()
    differing, equal = page.index(f'value="{LR}"'), page.index('value="config:n"')
    assert differing < equal
    assert f'value="{SCORE}"' in page
    assert "<html" not in page
