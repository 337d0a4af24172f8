"""The answers to a queue: who said what about which item, what was decided, and how people do on known items.

The statistics are in `rollouts/agreement/`, which knows no table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, InvalidInputError, NotFoundError
from rollouts.live import notify_topics
from rollouts.models import ItemDecision, Label, Queue, QueueItem
from rollouts.projects import record_audit_entry
from rollouts.queues.slots import list_questions

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_REASON_CHARS = 2000


@dataclass(slots=True)
class ItemAnswers:
    """`answers` is {question: {author: value}} of the `people` who completed the item, `decided` {question: value}."""

    item: QueueItem
    answers: dict[str, dict[str, Any]]
    decided: dict[str, Any]
    people: set[str] = field(default_factory=set)

    def get_final(self, name: str) -> Any:
        """Returns the decided value, else the one that everybody gave, else None."""
        if name in self.decided:
            return self.decided[name]
        values = list(self.answers.get(name, {}).values())
        return values[0] if values and all(value == values[0] for value in values) else None

    def differs(self, name: str) -> bool:
        values = list(self.answers.get(name, {}).values())
        return any(value != values[0] for value in values[1:])


def load_answers(queue: Queue, items: Sequence[QueueItem] | None = None) -> list[ItemAnswers]:
    """Returns the completed answers of all items, or of these, in the order of the queue. A "cannot judge" is an answer
    to the question `review`."""
    rows = queue.slots.exclude(done_at=None)
    labels = Label.objects.active().filter(run__in=queue.runs.all(), source="human")
    decisions = ItemDecision.objects.filter(item__queue=queue)
    if items is not None:
        rows, decisions = rows.filter(item__in=items), decisions.filter(item__in=items)
        labels = labels.filter(sample__among=[item.sample for item in items])
    done: dict[int, set[str]] = defaultdict(set)
    for item, author in rows.values_list("item", "user__username"):
        done[item].add(author)
    if items is None:
        items = list(queue.items.filter(pk__in=done).select_related("step", "run").order_by("position"))
    else:
        items = [item for item in items if item.pk in done]
    by_sample = {item.sample: ItemAnswers(item, {}, {}, done[item.pk]) for item in items}
    names = [*(question.key for question in list_questions(queue)), "review"]
    for sample, name, author, value in labels.filter(name__in=names).values_list("sample", "name", "author", "value"):
        entry = by_sample.get(sample)
        if entry and author in done[entry.item.pk]:
            entry.answers.setdefault(name, {})[author] = value
    by_item = {entry.item.pk: entry for entry in by_sample.values()}
    for item, name, value in decisions.values_list("item", "name", "value"):
        if item in by_item:
            by_item[item].decided[name] = value
    return list(by_sample.values())


def decide_answer(
    item: QueueItem, by: User, name: str, value: Any, reason: str = "", *, seen: str | None = None
) -> ItemDecision:
    """Stores which answer holds. The labels of the people stay. The caller has checked that `by` leads the project.

    `seen` is the time of the decision that `by` saw, "" for none. Raises InvalidInputError, and ConflictError if the
    question was decided since.
    """
    question = next((question for question in list_questions(item.queue) if question.key == name), None)
    if question is None:
        raise InvalidInputError(f"This queue does not ask {name[:40]!r}.", "name")
    chooses_none = question.kind == "choices" and value == []  # an answer, though no label is stored for it
    parsed = [] if chooses_none else question.parse_value(value).value
    with transaction.atomic():
        check_decision_seen(item, name, seen)
        defaults = {"value": parsed, "reason": reason[:MAX_REASON_CHARS], "user": by}
        decision, _created = ItemDecision.objects.update_or_create(item=item, name=name, defaults=defaults)
        detail = {"queue": item.queue_id, "item": item.pk, "question": name}
        record_audit_entry(by, "queue.decide", item.queue.name, project=item.queue.project, **detail)
    notify_topics("queues")
    return decision


def check_decision_seen(item: QueueItem, name: str, seen: str | None) -> None:
    """Raises ConflictError if the question was decided since the user saw it. Locks the item: without a decision there
    is no other row that a second lead would wait for."""
    QueueItem.objects.select_for_update(no_key=True).get(pk=item.pk)
    decision = ItemDecision.objects.filter(item=item, name=name).first()
    if decision is not None and seen is not None and seen != decision.at.isoformat():
        message = _("{name} has decided this question since you opened the page. Load the page again.")
        raise ConflictError(message.format(name=decision.user.username))


def withdraw_decision(item: QueueItem, by: User, name: str, *, seen: str | None = None) -> None:
    """Removes the decision, so that the question is open again. `seen` is as in `decide_answer`. Raises NotFoundError
    if there is none, and ConflictError if the question was decided since."""
    with transaction.atomic():
        check_decision_seen(item, name, seen)
        if not ItemDecision.objects.filter(item=item, name=name).delete()[0]:
            raise NotFoundError(_("This question is not decided."), "question")
        detail = {"queue": item.queue_id, "item": item.pk, "question": name}
        record_audit_entry(by, "queue.undecide", item.queue.name, project=item.queue.project, **detail)
    notify_topics("queues")
