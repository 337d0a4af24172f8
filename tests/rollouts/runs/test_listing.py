"""What the list of runs says of each is what the run's own page says."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from rollouts.models import Project, Run, Step
from rollouts.runs import RunTable, listing
from tests.support import builders

pytestmark = pytest.mark.django_db


def quiet(project: Project, name: str, minutes: float, pace: float = 0, **more: str) -> Run:
    """A run that was heard `minutes` ago; its four training steps came `pace` minutes apart, where it has any."""
    now = timezone.now()
    run = builders.run(project, name, seen_at=now - timedelta(minutes=minutes), **more)
    attempt = builders.attempt(run)
    for step in range(4 if pace else 0):
        created = Step.objects.create(run=run, attempt=attempt, split="train", step=step, samples=1)
        Step.objects.filter(pk=created.pk).update(created_at=now - timedelta(minutes=pace * (4 - step)))
    return run


def test_many_runs_are_silent_by_the_rule_of_one(project: Project) -> None:
    expected = {
        builders.run(project, "made by pull", seen_at=timezone.now() - timedelta(hours=2)): "planned",
        quiet(project, "no step yet", 4): "silent",
        quiet(project, "just heard", 2): "running",
        quiet(project, "quick steps", 4, pace=0.1): "silent",
        quiet(project, "slow steps", 29, pace=10): "running",
        quiet(project, "slow steps, long ago", 31, pace=10): "silent",
        quiet(project, "ended", 900, outcome="finished"): "finished",
    }
    assert {run.name: run.status for run in expected} == {run.name: status for run, status in expected.items()}
    assert listing.load_run_statuses(list(expected)) == {run.pk: status for run, status in expected.items()}


def test_a_planned_run_is_running_with_its_first_attempt_though_its_version_stays(project: Project) -> None:
    run = builders.run(project)
    assert RunTable([run]).statuses == {run.pk: "planned"}
    builders.attempt(run)
    assert RunTable([run]).statuses == {run.pk: "running"}
