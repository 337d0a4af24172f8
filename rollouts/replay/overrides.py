"""A project may replay in spite of a refusal of the compatibility check: said per fact, in writing, by a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

MOST_NOTE = 500


@transaction.atomic
def override_check(project: Project, fact: str, by: User, note: str) -> Project:
    """A difference in `fact` is only a warning from now on; `note` says why. Raises BadInput without one."""
    fact = parse_choice(fact, "fact", REFUSE_FACTS, default="")
    note = parse_text(note, "note", most=MOST_NOTE).strip()
    if not fact:
        raise InvalidInputError(_("`fact` must be one of {known}.").format(known=", ".join(REFUSE_FACTS)), "fact")
    if not note:
        said = _("Enter a reason. It is visible to the team.")
        raise InvalidInputError(said, "note")
    told = {"note": note, "user": by.get_username(), "at": timezone.now().isoformat()}
    loosened = {**Project.objects.lock(project).loosened, fact: told}
    return kept(project, loosened, by, "plan.loosen", fact=fact, note=note)


@transaction.atomic
def restore_check(project: Project, fact: str, by: User) -> Project:
    """A difference in `fact` is a refusal again; so it was if it had not been loosened."""
    before = Project.objects.lock(project).loosened
    if fact not in before:
        return project
    left = {name: told for name, told in before.items() if name != fact}
    return kept(project, left, by, "plan.tighten", fact=fact)


def kept(project: Project, loosened: dict[str, dict[str, str]], by: User, verb: str, **detail: str) -> Project:
    project.loosened = loosened
    project.save(update_fields=["loosened"])
    record_audit_entry(by, verb, project.slug, project=project, **detail)
    notify_topics("pins")
    return project
