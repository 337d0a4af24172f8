"""Groups of runs: by a value, by configuration, nested, folded."""

from __future__ import annotations

import re
from html import unescape

from django.test import Client

from rollouts.models import Project, Run, Step
from tests.dashboard.pages.runs.support import LR, create_runs, get_page, read_run_names
from tests.support import builders
from tests.support.html import collapse_spaces


def test_groups_put_runs_of_one_value_together_with_their_mean_score(runs: list[Run], owner_client: Client) -> None:
    page = get_page(owner_client, f"/?group={LR}&sort=name")
    assert read_run_names(page) == ["run-000", "run-002", "run-004", "run-001", "run-003", "run-005"]
    assert "<b>1.0e-06</b>" in collapse_spaces(page)
    assert '<b>0.23</b><span class="muted">± 0.20</span>' in collapse_spaces(page)


def test_runs_that_differ_only_in_the_seed_are_one_group(project: Project, owner_client: Client) -> None:
    """Names and folders of a run are no part of its configuration."""
    for n in range(4):
        name = f"sweep-lr{n // 2}-s{n % 2}"
        config = {
            "lr": [1e-6, 3e-6][n // 2],
            "data": {"seed": n},
            "trainer": {"experiment_name": name, "out": f"/ckpt/{name}"},
        }
        run = builders.run(project, name, config=config, outcome=["finished", "failed"][n == 3])
        scores = {"score_mean": n / 2, "truncated": n}
        Step.objects.create(run=run, attempt=builders.attempt(run), split="train", step=1 + n, samples=4, **scores)
    builders.run(project, "without-config")
    page = collapse_spaces(get_page(owner_client, "/?sort=name"))
    assert re.findall(r'<tr id="group-.*?<b>(.*?)</b>', page) == ["sweep-lr0", "sweep-lr1"]
    assert read_run_names(page) == ["sweep-lr0-s0", "sweep-lr0-s1", "sweep-lr1-s0", "sweep-lr1-s1", "without-config"]
    assert "<b>1.25</b>" in page and "± 0.35" in page, "mean and standard deviation (n - 1) of 1 and 1.5"
    assert "1 failed" in page and "3–4" in page
    assert ">lr</a>" in page and "experiment_name" not in page and ">out</a>" not in page
    assert page.count("2 values</span>") == 2, "the seeds of both groups"


def test_a_long_list_is_folded_and_a_group_opens_by_its_link(project: Project, owner_client: Client) -> None:
    create_runs(project, 50)
    page = get_page(owner_client, "/")
    assert read_run_names(page) == [] and page.count('class="run-group"') == 2
    link = re.search(r'class="fold quiet" href="([^"]*)"', page)
    assert link
    opened = get_page(owner_client, "/" + unescape(link[1]))
    assert len(read_run_names(opened)) == 25
    again = re.search(r'href="([^"]*)"[^>]*aria-expanded="true"', opened)
    assert again and read_run_names(get_page(owner_client, "/" + unescape(again[1]))) == []


def test_groups_are_nested(project: Project, owner_client: Client) -> None:
    for n in range(4):
        config = {"model": ["qwen", "llama"][n // 2], "algorithm": ["grpo", "gspo"][n % 2], "seed": n}
        builders.run(project, f"run-{n}", config=config)
    page = collapse_spaces(get_page(owner_client, "/?group=model,algorithm&sort=name"))
    assert re.findall(r'data-level="(\d)"', page) == ["0", "1", "2", "1", "2"] * 2
    assert re.findall(r'<tr id="group-.*?<b>(.*?)</b>', page) == ["llama", "grpo", "gspo", "qwen", "grpo", "gspo"]


def test_the_box_of_a_group_selects_its_runs(runs: list[Run], owner_client: Client) -> None:
    page = collapse_spaces(get_page(owner_client, "/?sort=name"))
    value = re.search(r'name="run" value="([^"]*,[^"]*)"', page)
    assert value and value[1].count(",") == 2
    answer = owner_client.post("/tidy/", {"do": "tag", "tag": "grouped", "run": value[1]}, follow=True).content.decode()
    assert "Tag grouped added to 3 runs." in answer


def test_values_that_differ_only_in_case_are_separate_groups(project: Project, owner_client: Client) -> None:
    for name, opt in (("a", "Adam"), ("b", "adam"), ("c", "Adam")):
        builders.run(project, name, config={"opt": opt})
    page = get_page(owner_client, "/?group=config:opt&sort=name")
    assert read_run_names(page) == ["a", "c", "b"]
    assert page.count('class="run-group"') == 2
