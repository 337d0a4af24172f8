"""On PostgreSQL, rows that refer to a locked row can be written. Otherwise transactions wait for each other: changing a
rule while samples were flagged and pinned caused one deadlock per second."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from rollouts.findings import findings
from rollouts.ingest import runs
from rollouts.models import Project, Run, Sample, ViewedSample
from rollouts.review import viewed
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


def run_on_other_connection(action: Callable[[], Any]) -> None:
    """Runs the action on another connection, which waits two seconds for a lock. Raises the errors of the action."""

    def run_action() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '2s'")
            action()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run_action).result(30)


def test_findings_can_be_created_while_the_project_is_locked(project: Project, owner: User) -> None:
    with transaction.atomic():
        Project.objects.lock(project)
        run_on_other_connection(lambda: findings.create_finding(project, owner, title="Loops"))
    assert project.findings.count() == 1


def test_samples_can_be_marked_viewed_while_the_run_is_locked(project: Project, owner: User) -> None:
    run: Run = builders.run(project)
    index_file(run, lines({"prompt": "1+1?", "response": "2"}), format="native")
    sample = Sample.objects.get().pk
    with transaction.atomic():
        runs.is_awaiting_attempt(run)
        run_on_other_connection(lambda: viewed.mark_viewed(run, [sample], owner))
    assert ViewedSample.objects.filter(run=run).count() == 1
