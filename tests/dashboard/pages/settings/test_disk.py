"""Disk usage: measured in the background, shown to maintainers, and part of /metrics."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from rollouts.maintenance import measure_due_runs
from rollouts.models import Project, Run, RunDiskUsage
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def maintainer_client(client: Client, project: Project) -> Client:
    client.force_login(builders.member(project, "petr", "maintainer"))
    return client


def test_changed_runs_are_measured_again_later(run: Run) -> None:
    index_file(run, lines(generation()), 1)
    assert measure_due_runs() == 1
    assert measure_due_runs() == 0
    first = RunDiskUsage.objects.get(run=run)
    assert first.raw > 0 and first.bodies > 0 and first.index > 0
    index_file(run, lines(generation("a", "b")), 2)
    assert measure_due_runs() == 0, "it was measured just now"
    RunDiskUsage.objects.update(measured_at=run.created_at.replace(year=2020))
    assert measure_due_runs() == 1
    assert RunDiskUsage.objects.get(run=run).raw > first.raw


def test_projects_and_runs_are_listed_largest_first(project: Project, maintainer_client: Client) -> None:
    for name, size in (("small", 10), ("large", 749_000_000)):
        RunDiskUsage.objects.create(run=builders.run(project, name), raw=size)
    builders.run(project, "new")
    page = collapse_spaces(maintainer_client.get("/disk/?project=math").content.decode())
    assert "749 MB" in page and "1 run is not measured yet." in page
    assert page.index(">large<") < page.index(">small<")


def test_more_runs_need_no_more_queries(project: Project, maintainer_client: Client) -> None:
    def count_queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            maintainer_client.get("/disk/?project=math")
        return len(queries)

    RunDiskUsage.objects.create(run=builders.run(project, "r0"), raw=1)
    few = count_queries()
    for number in range(1, 30):
        RunDiskUsage.objects.create(run=builders.run(project, f"r{number}"), raw=number)
    assert count_queries() == few


def test_viewers_and_strangers_do_not_see_disk_usage(project: Project, client: Client, stranger: User) -> None:
    for user in (builders.member(project, "vera", "viewer"), stranger):
        client.force_login(user)
        assert client.get("/disk/").status_code == 404


def test_a_maintainer_sees_only_own_projects(maintainer_client: Client) -> None:
    hidden = builders.project("secret")
    RunDiskUsage.objects.create(run=builders.run(hidden, "hidden"), raw=5)
    assert "secret" not in maintainer_client.get("/disk/").content.decode()
    assert maintainer_client.get("/disk/?project=secret").status_code == 404


def test_metrics_have_the_bytes_of_each_project(run: Run, client: Client) -> None:
    RunDiskUsage.objects.create(run=run, raw=123, bodies=7)
    text = client.get("/metrics").content.decode()
    assert 'rolloutdeck_disk_bytes{kind="raw",project="math"} 123.0' in text
    assert 'rolloutdeck_disk_bytes{kind="bodies",project="math"} 7.0' in text
    assert f'rolloutdeck_run_disk_bytes{{kind="raw",project="math",run="{run.uid}"}} 123.0' in text
