"""The list of runs shows the same status as the page of each run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from rollouts.models import Project, Run, Step
from rollouts.runs import RunTable, listing
from tests.support import builders

pytestmark = pytest.mark.django_db


def create_run(project: Project, name: str, minutes: float, pace: float = 0, **more: str) -> Run:
    """A run whose newest data is `minutes` old; with `pace`, it has four training steps, so many minutes apart."""
    now = timezone.now()
    run = builders.run(project, name, seen_at=now - timedelta(minutes=minutes), **more)
    attempt = builders.attempt(run)
    for step in range(4 if pace else 0):
        created = Step.objects.create(run=run, attempt=attempt, split="train", step=step, samples=1)
        Step.objects.filter(pk=created.pk).update(created_at=now - timedelta(minutes=pace * (4 - step)))
    return run


def test_the_statuses_of_many_runs_equal_the_status_of_each_run(project: Project) -> None:
    expected = {
        builders.run(project, "made by pull", seen_at=timezone.now() - timedelta(hours=2)): "planned",
        create_run(project, "no step yet", 4): "silent",
        create_run(project, "just heard", 2): "running",
        create_run(project, "quick steps", 4, pace=0.1): "silent",
        create_run(project, "slow steps", 29, pace=10): "running",
        create_run(project, "slow steps, long ago", 31, pace=10): "silent",
        create_run(project, "ended", 900, outcome="finished"): "finished",
    }
    assert {run.name: run.status for run in expected} == {run.name: status for run, status in expected.items()}
    assert listing.load_run_statuses(list(expected)) == {run.pk: status for run, status in expected.items()}


def test_a_planned_run_is_running_with_its_first_attempt_though_its_version_stays(project: Project) -> None:
    run = builders.run(project)
    assert RunTable([run]).statuses == {run.pk: "planned"}
    builders.attempt(run)
    assert RunTable([run]).statuses == {run.pk: "running"}
