"""Who holds a row to change it keeps nobody from writing rows that name it, on PostgreSQL: such waits in a ring are
deadlocks, of which a rule's change beside flags and pins had one a second."""

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


def elsewhere(act: Callable[[], Any]) -> None:
    """Does it on a connection of its own, which waits two seconds for a lock. Raises what the act does."""

    def alone() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '2s'")
            act()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(alone).result(30)


def test_a_project_that_is_held_takes_new_findings(project: Project, owner: User) -> None:
    with transaction.atomic():
        Project.objects.lock(project)
        elsewhere(lambda: findings.create_finding(project, owner, title="Loops"))
    assert project.findings.count() == 1


def test_a_run_that_is_held_takes_what_people_have_seen(project: Project, owner: User) -> None:
    run: Run = builders.run(project)
    index_file(run, lines({"prompt": "1+1?", "response": "2"}), format="native")
    sample = Sample.objects.get().pk
    with transaction.atomic():
        runs.is_awaiting_attempt(run)
        elsewhere(lambda: viewed.mark_viewed(run, [sample], owner))
    assert ViewedSample.objects.filter(run=run).count() == 1
