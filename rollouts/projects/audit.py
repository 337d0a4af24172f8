"""The audit log: actions that others can look up later."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from rollouts.models import AuditEntry, Project


def record_audit_entry(
    user: User | None, verb: str, subject: str, *, project: Project | None = None, **detail: Any
) -> AuditEntry:
    """Writes one entry. `verb` is an operation such as `run.delete`, `subject` the name of its object."""
    return AuditEntry.objects.create(user=user, project=project, verb=verb, subject=subject[:200], detail=detail)
