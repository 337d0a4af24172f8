"""Changes of a queue after its start: people, due date, name, and its end. Items and questions stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, InvalidInputError
from rollouts.lib import parse_integer, parse_text
from rollouts.live import notify_topics
from rollouts.models import Project, Queue
from rollouts.projects import record_audit_entry
from rollouts.queues.create import MAX_MINUTES, MAX_NAME_CHARS, parse_due, parse_people

if TYPE_CHECKING:
    from django.contrib.auth.models import User

CHANGEABLE: Final = ("name", "due_at", "reviewers", "roles", "reservation_minutes")


@transaction.atomic
def update_queue(queue: Queue, by: User, changes: Mapping[str, Any]) -> Queue:
    """Changes these settings. Raises InvalidInputError for others: people have answered what the queue asked."""
    if fixed := next((name for name in changes if name not in CHANGEABLE), None):
        message = _("`{name}` cannot be changed after the start of the queue. Create another queue.")
        raise InvalidInputError(message.format(name=fixed[:40]), fixed[:40])
    Project.objects.lock(queue.project)
    if "name" in changes:
        name = parse_text(changes["name"], "name", max_chars=MAX_NAME_CHARS).strip()
        if not name:
            raise InvalidInputError(_("Give the queue a name."), "name")
        if queue.project.queues.filter(name=name).exclude(pk=queue.pk).exists():
            raise ConflictError(_("There is already a queue {name}.").format(name=repr(name)), "name")
        queue.name = name
    if "due_at" in changes:
        queue.due_at = parse_due(changes["due_at"])
    if "reservation_minutes" in changes:
        minutes = parse_integer(changes["reservation_minutes"], "reservation_minutes", minimum=1, maximum=MAX_MINUTES)
        queue.reservation_minutes = minutes or queue.reservation_minutes
    if "reviewers" in changes or "roles" in changes:
        before = {"reviewers": [user.get_username() for user in queue.reviewers.all()], "roles": queue.roles}
        people, queue.roles = parse_people(queue.project, {**before, **changes})
        queue.reviewers.set(people)
    queue.save()
    record_audit_entry(by, "queue.update", queue.name, project=queue.project, queue=queue.pk, changed=sorted(changes))
    notify_topics("queues")
    return queue


def close_queue(queue: Queue, by: User) -> None:
    """Ends the queue: nobody can answer, what was answered stays."""
    set_closed(queue, by, closed=True)


def reopen_queue(queue: Queue, by: User) -> None:
    set_closed(queue, by, closed=False)


@transaction.atomic
def set_closed(queue: Queue, by: User, *, closed: bool) -> None:
    if closed == (queue.closed_at is not None):
        return
    queue.closed_at = timezone.now() if closed else None
    queue.save(update_fields=["closed_at"])
    verb = "queue.close" if closed else "queue.reopen"
    record_audit_entry(by, verb, queue.name, project=queue.project, queue=queue.pk)
    notify_topics("queues")
