"""The audit log of a project: who may read it, and how it is filtered and paged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from rollouts.models import AuditEntry, Project, Run
from rollouts.projects import record_audit_entry
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def owner(project: Project) -> User:
    return builders.member(project, "olga", "owner")


@pytest.fixture
def owner_client(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


def open_page(client: Client, query: str = "") -> str:
    response = client.get(f"/audit/?project=math{query}")
    assert response.status_code == 200
    return collapse_spaces(response.content.decode())


def test_flags_are_in_the_log(project: Project, run: Run, owner_client: Client, mate: User) -> None:
    index_file(run, lines(generation()), 1)
    builders.flag(run.steps.get().rows.get().pk, mate, reason="reward-hack")
    page = open_page(owner_client)
    assert "flagged samples" in page and "reward: reward-hack" not in page and "reason: reward-hack" in page


def test_entries_are_filtered_by_person_action_date_and_run(
    project: Project, run: Run, owner_client: Client, owner: User
) -> None:
    other = builders.member(project, "petr", "maintainer")
    record_audit_entry(owner, "role.set", "subject-role", project=project, role="viewer")
    record_audit_entry(other, "run.archive", "subject-run", project=project, uid=run.uid)
    old = record_audit_entry(other, "token.create", "subject-old", project=project)
    AuditEntry.objects.filter(pk=old.pk).update(at=timezone.now() - timedelta(days=10))

    def find_subjects(query: str) -> set[str]:
        page = open_page(owner_client, query)
        return {name for name in ("subject-role", "subject-run", "subject-old") if name in page}

    today = timezone.now().date()
    assert find_subjects("") == {"subject-role", "subject-run", "subject-old"}
    assert find_subjects("&until=9999-12-31") == find_subjects("")
    assert find_subjects("&user=petr") == {"subject-run", "subject-old"}
    assert find_subjects("&action=role.set") == {"subject-role"}
    assert find_subjects("&action=run") == {"subject-run"}
    assert find_subjects(f"&since={today}") == {"subject-role", "subject-run"}
    assert find_subjects(f"&until={today - timedelta(days=1)}") == {"subject-old"}
    assert find_subjects(f"&run={run.uid}") == {"subject-run"}
    assert "It is ignored." in open_page(owner_client, "&since=yesterday")
    assert "No entry matches this filter." in open_page(owner_client, "&user=nobody")


def test_the_log_is_paged_and_escaped(project: Project, owner_client: Client, owner: User) -> None:
    for number in range(60):
        record_audit_entry(owner, "run.tag", f"<script>{number}</script>", project=project)
    page = open_page(owner_client)
    assert "page 1 of 2" in page and "&lt;script&gt;59" in page and "<script>59" not in page
    assert "&lt;script&gt;0&lt;" in open_page(owner_client, "&page=2")


def test_only_owners_read_the_audit_log(project: Project, client: Client, mate: User, stranger: User) -> None:
    for user in (mate, stranger):
        client.force_login(user)
        assert client.get("/audit/?project=math").status_code == 404
