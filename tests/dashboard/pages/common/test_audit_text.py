"""The audit log says what was done in words."""

from __future__ import annotations

import re
from pathlib import Path

from dashboard.pages.common.audit_text import VERB_NAMES, describe_audit_entry
from rollouts.models import AuditEntry

ROOT = Path(__file__).parents[4]
CALL = re.compile(r'record_audit_entry\([^"()]*"([a-z_]+\.[a-z_]+)"')


def test_every_action_that_is_recorded_has_words() -> None:
    modules = [path for folder in ("dashboard", "rollouts", "workers") for path in (ROOT / folder).rglob("*.py")]
    recorded = {verb for path in modules for verb in CALL.findall(path.read_text())}
    assert recorded and not recorded - VERB_NAMES.keys()


def test_a_list_is_written_without_brackets() -> None:
    entry = AuditEntry(verb="rubric.save", detail={"questions": ["correct", "quality"]})
    assert describe_audit_entry(entry)[1] == "questions: correct, quality"
