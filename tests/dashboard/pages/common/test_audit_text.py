"""The texts of the audit log: every action has one, in the language of the reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils.translation import override

from dashboard.pages.common.audit_text import VERB_NAMES, describe_audit_entry
from rollouts.guidance import save_guidance
from rollouts.labels import save_rubric
from rollouts.models import AuditEntry, Project

ROOT = Path(__file__).parents[4]
CALL = re.compile(r'record_audit_entry\([^"()]*"([a-z_]+\.[a-z_]+)"')


def test_every_recorded_action_has_a_text() -> None:
    modules = [path for folder in ("dashboard", "rollouts", "workers") for path in (ROOT / folder).rglob("*.py")]
    recorded = {verb for path in modules for verb in CALL.findall(path.read_text())}
    assert recorded and not recorded - VERB_NAMES.keys()


def test_a_list_is_written_without_brackets() -> None:
    entry = AuditEntry(verb="rubric.save", detail={"questions": ["correct", "quality"]})
    assert describe_audit_entry(entry)[2] == "questions: correct, quality"


def test_the_object_is_in_the_language_of_the_reader() -> None:
    entry = AuditEntry(verb="label.undo", subject="5 个标签，1 个样本", detail={"sample_count": 2, "labels": 5})
    assert describe_audit_entry(entry)[1:] == ("2 samples", "labels: 5")
    with override("zh-hans"):
        assert describe_audit_entry(entry)[1] == "2 个样本"
    older = AuditEntry(verb="label.undo", subject="6 labels on 1 sample")
    assert describe_audit_entry(older)[1] == older.subject


@pytest.mark.django_db
def test_a_version_is_in_the_language_of_the_reader(project: Project, owner: User) -> None:
    with override("zh-hans"):
        save_rubric(project, owner, [{"key": "correct", "title": "Right?", "kind": "yes-no"}])
        save_guidance(project, owner, [{"key": "bad", "query": "is:flagged", "action": "mask"}], "")
    entries = AuditEntry.objects.order_by("pk")
    assert [(entry.subject, describe_audit_entry(entry)[1]) for entry in entries] == [("1", "version 1")] * 2
    older = AuditEntry(verb="rubric.save", subject="version 3")
    assert describe_audit_entry(older)[1] == older.subject
