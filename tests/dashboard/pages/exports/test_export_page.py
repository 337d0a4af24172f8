"""The page that exports the samples of a query, of one run or of all runs of a project."""

from __future__ import annotations

import shlex
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rolloutdeck.cli.entry import build_parser
from rollouts.models import Project, Run
from tests.rollouts.support.query_rows import push
from tests.support import builders


def create_run_with_samples(project: Project, name: str) -> Run:
    run = builders.run(project, name)
    push(run, [{"response": f"loop {n}", "score": float(n)} for n in range(3)])
    return run


def test_a_search_over_all_runs_leads_to_an_export_of_all_of_them(
    project: Project, mate: User, reader: Client, stranger: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.pages.search.views.PART_SECONDS", 60)
    create_run_with_samples(project, "one"), create_run_with_samples(project, "two")
    found = unescape(reader.get(f"/search/?project={project.slug}&q=loop+score>0").content.decode())
    link = f"/export/?project={project.slug}&q=loop%20score%3E0"
    assert f'href="{link}"' in found
    page = reader.get(link).content.decode()
    assert "All matching samples of <b>2</b> runs" in page
    assert f'<input type="hidden" name="project" value="{project.slug}">' in page
    assert "<pre>rolloutdeck export --project math --out data --q &#x27;loop score&gt;0&#x27;</pre>" in page
    archive = reader.get(f"/api/v1/exports/datasets/?project={project.slug}&q=loop+score>0")
    assert archive.headers["X-Total-Samples"] == "4"
    reader.force_login(stranger)
    assert reader.get(link).status_code == 404


def test_an_export_of_a_run_counts_its_samples(project: Project, reader: Client) -> None:
    run = create_run_with_samples(project, "one")
    assert "<b>2</b> samples" in reader.get(f"/export/?run={run.uid}&q=score>0").content.decode()


def test_the_command_exports_what_the_page_counts(project: Project, reader: Client) -> None:
    run = create_run_with_samples(project, "one")
    page = unescape(reader.get(f"/export/?run={run.uid}&attempt=all&split=all&q=-is:correct").content.decode())
    command = page.partition("<pre>rolloutdeck ")[2].partition("</pre>")[0]
    args = build_parser().parse_args(shlex.split(command))
    assert (args.q, args.attempt, args.split) == ("-is:correct", "all", "")


def test_a_wrong_query_and_a_project_without_runs_are_explained(project: Project, reader: Client) -> None:
    empty = reader.get(f"/export/?project={project.slug}")
    assert empty.status_code == 400 and "The project has no runs." in empty.content.decode()
    create_run_with_samples(project, "one")
    assert reader.get(f"/export/?project={project.slug}&q=score>").status_code == 400
