"""Helpers for the tests of the run list: many runs, and what the page lists."""

from __future__ import annotations

import re
from datetime import timedelta

from django.test import Client
from django.utils import timezone

from rollouts.metrics import series
from rollouts.models import Project, Run, Step
from rollouts.samples.record import MetricPoint
from tests.support import builders
from tests.support.html import collapse_spaces

LR = "config:actor.optim.lr"
SCORE = "last:critic/score/mean"


def create_runs(project: Project, count: int) -> list[Run]:
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


def read_run_names(page: str) -> list[str]:
    """The listed runs, in order."""
    return re.findall(r'class="run-name"[^>]*><b>([^<]*)</b>', collapse_spaces(page))


def get_page(client: Client, url: str, status: int = 200) -> str:
    answer = client.get(url)
    assert answer.status_code == status, (url, answer.status_code)
    return answer.content.decode()
