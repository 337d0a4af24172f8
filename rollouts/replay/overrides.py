"""Overrides of the compatibility check: a project may replay in spite of a refusal, per fact and with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from rolloutdeck.protocol import REFUSE_FACTS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice, parse_text
from rollouts.live import notify_topics
from rollouts.models import Project
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_NOTE_CHARS = 500


@transaction.atomic
def override_check(project: Project, fact: str, by: User, note: str) -> Project:
    """Makes a difference in `fact` only a warning. `note` is the reason. Raises InvalidInputError."""
    fact = parse_choice(fact, "fact", REFUSE_FACTS, default="")
    note = parse_text(note, "note", max_chars=MAX_NOTE_CHARS).strip()
    if not fact:
        raise InvalidInputError(_("`fact` must be one of {known}.").format(known=", ".join(REFUSE_FACTS)), "fact")
    if not note:
        raise InvalidInputError(_("Enter a reason. It is visible to the team."), "note")
    override = {"note": note, "user": by.get_username(), "at": timezone.now().isoformat()}
    overrides = {**Project.objects.lock(project).loosened, fact: override}
    return store_overrides(project, overrides, by, "plan.loosen", fact=fact, note=note)


@transaction.atomic
def restore_check(project: Project, fact: str, by: User) -> Project:
    """Makes a difference in `fact` a refusal again."""
    overrides = Project.objects.lock(project).loosened
    if fact not in overrides:
        return project
    remaining = {name: override for name, override in overrides.items() if name != fact}
    return store_overrides(project, remaining, by, "plan.tighten", fact=fact)


def store_overrides(project: Project, overrides: dict[str, Any], by: User, verb: str, **detail: str) -> Project:
    project.loosened = overrides
    project.save(update_fields=["loosened"])
    record_audit_entry(by, verb, project.slug, project=project, **detail)
    notify_topics("pins")
    return project
