from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from rollouts.errors import RolloutError
from rollouts.indexing.indexer import index_dump
from rollouts.ingest import summarize_ingest
from rollouts.models import Dump, Project, Run
from tests.rollouts.support.push import index_file, lines, push
from tests.support import builders

pytestmark = pytest.mark.django_db
ROW = {"prompt": "1+1?", "response": "2"}


@pytest.fixture
def run_with_dumps(run: Run) -> Run:
    """Three calls of one process (a dump with two rejected rows, a failed one, one that waits), and one of another."""
    index_file(run, lines(ROW, {"prompt": "q"}, {**ROW, "response": 5}), 1, source="call:a-1", format="native")
    with pytest.raises(RolloutError):
        index_file(run, lines({"other": 1}), 2, source="call:a-2", format="table")
    push(run, lines(ROW), 4, source="call:a-3", format="native")
    index_file(run, lines(ROW, {**ROW, "response": "3"}), 3, source="call:b-1", format="native")
    return run


def test_the_summary_counts_the_rows_of_one_process(run_with_dumps: Run) -> None:
    summary = summarize_ingest(run_with_dumps, "call:a-")
    assert (summary.rows, summary.rejected, summary.waiting) == (1, 2, 1)
    assert [(row.step, row.line) for row in summary.problems] == [(1, 2), (1, 3)]
    assert summary.problems[0].reason == "has no response; its keys are `prompt`"
    assert [dump["source"] for dump in summary.failed] == ["call:a-2"]
    assert (summarize_ingest(run_with_dumps).rows, summarize_ingest(run_with_dumps, "call:b-").rejected) == (3, 0)


def test_a_token_that_may_only_send_reads_the_summary(
    run_with_dumps: Run, owner: User, project: Project, client: Client
) -> None:
    def request_summary(scope: str) -> Any:
        token = builders.token(owner, scope, on=project)
        return client.get(
            f"/api/v1/runs/{run_with_dumps.uid}/ingest/?source=call:a-", HTTP_AUTHORIZATION=f"Bearer {token}"
        )

    assert {name: request_summary("ingest").json()[name] for name in ("rows", "rejected", "waiting")} == {
        "rows": 1, "rejected": 2, "waiting": 1,
    }  # fmt: skip
    assert request_summary("annotate").status_code == 403


def test_the_page_of_the_run_counts_rejected_rows_with_their_reasons(run_with_dumps: Run, reader: Client) -> None:
    page = reader.get(f"/runs/{run_with_dumps.uid}/").content.decode()
    assert "2 rows could not be used" in page
    assert "step 1, line 2: has no response; its keys are `prompt`" in " ".join(page.split())


def test_rejected_rows_of_a_file_that_was_corrected_do_not_count(run_with_dumps: Run, reader: Client) -> None:
    index_file(run_with_dumps, lines(ROW, {"prompt": "q", "response": "3"}), 1, source="call:a-1", format="native")
    summary = summarize_ingest(run_with_dumps)
    assert (summary.rows, summary.rejected, summary.problems, summary.partial) == (4, 0, [], [])
    assert "could not be used" not in reader.get(f"/runs/{run_with_dumps.uid}/").content.decode()


def test_rows_that_are_indexed_again_are_counted_again(run_with_dumps: Run) -> None:
    dump = Dump.objects.get(source="call:a-1")
    Dump.objects.filter(pk=dump.pk).update(state=Dump.State.RECEIVED, rejected=7)
    index_dump(dump.pk)
    assert summarize_ingest(run_with_dumps).rejected == 2


def test_the_migration_counts_the_rejected_rows_of_old_dumps(run_with_dumps: Run) -> None:
    Dump.objects.update(rejected=0)
    migration = import_module("rollouts.migrations.0004_rejected_rows")
    migration.fill_rejected(apps, SimpleNamespace(connection=connection))
    assert summarize_ingest(run_with_dumps).rejected == 2
