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
from rollouts.queues.settings import MAX_MINUTES, MAX_NAME_CHARS, parse_due, parse_people, parse_texts

if TYPE_CHECKING:
    from django.contrib.auth.models import User

COLUMNS: Final = ("name", "due_at", "roles", "reservation_minutes")
CHANGEABLE: Final = (*COLUMNS, "reviewers")


@transaction.atomic
def update_queue(queue: Queue, by: User, changes: Mapping[str, Any], *, seen: Mapping[str, Any] | None = None) -> Queue:
    """Changes these settings. `seen` are the settings as `by` saw them: what is the same in `changes` keeps the value
    that another lead may have stored since. Raises InvalidInputError for other settings: people have answered what the
    queue asked."""
    if fixed := next((name for name in changes if name not in CHANGEABLE), None):
        message = _("`{name}` cannot be changed after the start of the queue. Create another queue.")
        raise InvalidInputError(message.format(name=fixed[:40]), fixed[:40])
    lock_queue(queue)
    if seen is not None:
        changes = select_changes(queue, changes, seen)
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
        before = {user.get_username(): user for user in queue.reviewers.all()}
        names = parse_texts(changes, "reviewers") if "reviewers" in changes else list(before)
        new = [name for name in names if name not in before]  # who is in it stays, also without a role in the project
        people, queue.roles = parse_people(queue.project, {"roles": queue.roles, **changes, "reviewers": new})
        queue.reviewers.set([*people, *(user for name, user in before.items() if name in names)])
    queue.save(update_fields=COLUMNS)
    record_audit_entry(by, "queue.update", queue.name, project=queue.project, queue=queue.pk, changed=sorted(changes))
    notify_topics("queues")
    return queue


def lock_queue(queue: Queue) -> None:
    """Locks the queue's project, and reads the queue again: it may have changed since it was read."""
    Project.objects.lock(queue.project)
    queue.refresh_from_db()


def select_changes(queue: Queue, changes: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what differs from `seen`. Reviewers are those of the queue, with those that were added and without those
    that were removed. Raises ConflictError if that leaves nobody, though neither lead removed them all."""
    changed = {name: value for name, value in changes.items() if name not in seen or value != seen[name]}
    if "reviewers" in changed and "reviewers" in seen:
        before, after = set(seen["reviewers"]), set(changed["reviewers"])
        now = {user.get_username() for user in queue.reviewers.all()}
        left = now - (before - after) | (after - before)
        if now and after and not left and not queue.roles:
            message = _(
                "Another lead has removed the other reviewers. Load the page again: with nobody chosen everybody could "
                "answer."
            )
            raise ConflictError(message, "reviewers")
        changed["reviewers"] = sorted(left)
    return changed


def close_queue(queue: Queue, by: User) -> None:
    """Ends the queue: nobody can answer, what was answered stays."""
    set_closed(queue, by, closed=True)


def reopen_queue(queue: Queue, by: User) -> None:
    set_closed(queue, by, closed=False)


@transaction.atomic
def set_closed(queue: Queue, by: User, *, closed: bool) -> None:
    lock_queue(queue)
    if closed == (queue.closed_at is not None):
        return
    queue.closed_at = timezone.now() if closed else None
    queue.save(update_fields=["closed_at"])
    verb = "queue.close" if closed else "queue.reopen"
    record_audit_entry(by, verb, queue.name, project=queue.project, queue=queue.pk)
    notify_topics("queues")
