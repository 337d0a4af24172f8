"""Gives items to people: who answers which item, for how long, and what they said.

A slot is taken with one conditional UPDATE, so two people never hold the same one. The unique (item, user) keeps a
person from answering an item twice. A slot whose time is over can be taken by anybody; what its person had entered
stays as a draft.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, Max, Min, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, InvalidInputError, NotFoundError
from rollouts.labels import (
    CORRECTION_QUESTION,
    REVIEW_QUESTION,
    UNDO_WINDOW,
    Answer,
    Question,
    store_labels,
    undo_label_action,
)
from rollouts.lib import make_storable
from rollouts.live import delay_notifications, notify_topics
from rollouts.models import OK_ANSWER, Label, LabelAction, Queue, QueueDraft, QueueItem, QueueSlot
from rollouts.queues.create import load_queue_rubric
from rollouts.queues.groups import (
    COMPARISON_KEYS,
    PAIRS_KEY,
    compute_group_version,
    drop_outdated_pairs,
    load_own_labels,
    load_stored_order,
    load_stored_pairs,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.db.models import QuerySet

MAX_TRIES: Final = 20  # to take a slot that others take at the same moment
CANDIDATES: Final = 8  # slots that are looked at together
CANNOT_JUDGE: Final = "cannot-judge"
EXTRA_KEYS: Final = frozenset((REVIEW_QUESTION.key, CORRECTION_QUESTION.key))  # next to the questions of the rubric
MAX_SECONDS: Final = 3600.0  # a longer time is a break, not work


class SlotTakenError(ConflictError):
    """The time of the slot was over, and another person has it now."""

    code = "slot_taken"


class QueueClosedError(ConflictError):
    code = "queue_closed"


def claim_next(queue: Queue, user: User, *, after: int | None = None, left: Collection[int] = ()) -> QueueSlot | None:
    """Returns the slot that the user holds already, else takes the next free one; None if nothing is left for them.

    `after`: the position of an item that the user leaves, whose answers may still be on their way; another item is
    returned, if possible one behind it. `left`: ids of items before it whose answers are on their way, too. The caller
    has checked that the queue accepts the user.
    """
    check_open(queue)
    now = timezone.now()
    held = Q(done_at=None, reserved_until__gt=now)
    is_leaving = after is not None
    if is_leaving:
        held &= Q(position__gt=after) & ~Q(item__in=left)
    done = Q(done_at__isnull=False)
    rows = queue.slots.available().filter(user=user)
    own = rows.aggregate(held=Min("position", filter=held), last=Max("position", filter=done))
    if own["held"] is not None:
        return renew_slot(load_slot(queue, user, position=own["held"]))
    if after is None:
        after = own["last"]
    for _try in range(MAX_TRIES):
        now = timezone.now()
        free = queue.slots.free_for(user, now).order_by("position")  # the order of an index, so that few rows are read
        if is_leaving:
            free = free.exclude(user=user, reserved_until__gte=now).exclude(item__in=left)
        taken = take_first(queue, free.filter(position__gt=after), user, now) if after is not None else None
        if taken is None:
            taken = take_first(queue, free, user, now)
        if taken is not None:
            return load_slot(queue, user, pk=taken)
        if not free.exists():
            return None
    raise ConflictError(_("Many people take items at this moment. Try again."))


def take_first(queue: Queue, slots: Any, user: User, now: datetime) -> int | None:
    """Takes one of the first of these slots and returns its id; None if others were faster for all of them, or there is
    none."""
    with transaction.atomic():  # on SQLite nobody else writes until it ends, so the first one is taken at once
        if connection.features.has_select_for_update_skip_locked:
            slots = slots.select_for_update(skip_locked=True)
        ids = slots.values_list("pk", flat=True)[:CANDIDATES]
        return next((pk for pk in ids if take_slot(queue, pk, user, now)), None)


def take_slot(queue: Queue, pk: int, user: User, now: datetime) -> bool:
    """Takes a free slot. False if another person was faster, or the user holds another slot of the item."""
    until = now + timedelta(minutes=queue.reservation_minutes)
    free = Q(user=None) | Q(user=user) | Q(reserved_until__lt=now)
    rows = QueueSlot.objects.unanswered().filter(free, pk=pk)
    try:
        with transaction.atomic():
            return bool(rows.update(user=user, reserved_until=until, opened_at=now))
    except IntegrityError:
        return False


def load_slot(queue: Queue, user: User, **where: Any) -> QueueSlot:
    """Returns the user's slot with its item and run. The rows that the caller has are not read again."""
    slot: QueueSlot = queue.slots.select_related("item__run").get(user=user.pk, **where)
    slot.queue = slot.item.queue = queue
    slot.item.run.project = queue.project
    slot.user = user
    return slot


def claim_item(item: QueueItem, user: User) -> QueueSlot:
    """Returns the user's slot of this item, answered or not, or takes a free one. Raises SlotTakenError."""
    now = timezone.now()
    rows = item.slots.select_related("queue", "user")
    own = rows.filter(user=user).first()
    if own is not None and (own.done_at or renew_own(own, user, now)):
        return own
    check_open(item.queue)
    QueueDraft.objects.filter(item=item, user=user).update(skipped_at=None)
    for slot in rows.unanswered().order_by("number"):
        if take_slot(item.queue, slot.pk, user, now):
            return load_slot(item.queue, user, pk=slot.pk)
    holders = ", ".join(sorted(slot.user.get_username() for slot in rows if slot.user))
    message = _("This item has all its reviewers: {names}.")
    raise SlotTakenError(message.format(names=holders))


def renew_slot(slot: QueueSlot) -> QueueSlot:
    """Prolongs the reservation of an unanswered slot that its user still holds. Raises SlotTakenError."""
    assert slot.user is not None
    if not renew_own(slot, slot.user, timezone.now()):
        return claim_item(slot.item, slot.user)
    return slot


def renew_own(slot: QueueSlot, user: User, now: datetime) -> bool:
    until = now + timedelta(minutes=slot.queue.reservation_minutes)
    slot.reserved_until = until
    return bool(QueueSlot.objects.unanswered().filter(pk=slot.pk, user=user).update(reserved_until=until))


def check_open(queue: Queue) -> None:
    if queue.closed_at is not None:
        raise QueueClosedError(_("The queue {name} is closed.").format(name=repr(queue.name)))


def list_questions(queue: Queue) -> list[Question]:
    """Returns the questions that the queue asks, in the order of the rubric. About a group it asks none of them."""
    if queue.unit == Queue.Unit.GROUP:
        return []
    questions = load_queue_rubric(queue).questions
    return [question for question in questions if not queue.questions or question.key in queue.questions]


def save_draft(item: QueueItem, user: User, answers: Mapping[str, Any]) -> None:
    """Keeps what the user has entered and prolongs the reservation. Unknown questions are left out. For the order of a
    group see `save_order_draft`."""
    if item.queue.unit == Queue.Unit.GROUP:
        known = COMPARISON_KEYS
    else:
        known = EXTRA_KEYS | {question.key for question in list_questions(item.queue)}
    kept = {name: answer for name, answer in answers.items() if name in known and isinstance(answer, dict)}
    if item.queue.asks_pairs and PAIRS_KEY in kept:
        kept[PAIRS_KEY] = {**kept[PAIRS_KEY], "version": compute_group_version(item, user)}
    QueueDraft.objects.update_or_create(item=item, user=user, defaults={"answers": make_storable(kept)})
    for slot in item.slots.unanswered().filter(user=user).select_related("queue"):
        renew_own(slot, user, timezone.now())


def load_entered_answers(item: QueueItem, user: User, is_done: bool | None = None) -> dict[str, dict[str, Any]]:
    """Returns {question: {value, rationale, start, end}} of the user's draft, else of the answers they have given in
    this queue: an answer from another queue would look as if the user had just entered it. For a group it is
    {"order": {value, rationale}}, whose value has ids of samples, or {"pairs": {value}}. `is_done`: whether the user
    has answered the item, if the caller knows."""
    draft = QueueDraft.objects.filter(item=item, user=user).first()
    answers = dict(draft.answers) if draft else {}
    if item.queue.asks_pairs:
        answers = drop_outdated_pairs(item, user, answers)
    if answers:
        return answers
    if is_done is None:
        is_done = item.slots.filter(user=user, done_at__isnull=False).exists()
    if not is_done:
        return {}
    if item.queue.unit == Queue.Unit.GROUP:
        return load_stored_pairs(item, user) if item.queue.asks_pairs else load_stored_order(item, user)
    names = [*(question.key for question in list_questions(item.queue)), *EXTRA_KEYS]
    rows = Label.objects.active().filter(sample=item.sample, author=user.get_username(), source="human", name__in=names)
    fields = ("value", "rationale", "start", "end")
    return {row.name: {name: getattr(row, name) for name in fields} for row in rows}


def skip_item(item: QueueItem, user: User) -> None:
    """Gives the slot back. The item is not offered to the user again, until they open it themselves. Raises
    ConflictError if they have answered it."""
    with transaction.atomic():
        if item.slots.filter(user=user, done_at__isnull=False).exists():
            raise ConflictError(_("You have answered this item. Undo the answer first."))
        QueueDraft.objects.update_or_create(item=item, user=user, defaults={"skipped_at": timezone.now()})
        item.slots.unanswered().filter(user=user).update(user=None, reserved_until=None, opened_at=None)
    notify_topics("queues", sparse=True)


def find_skipped(queue: Queue, user: User) -> QuerySet[QueueDraft]:
    """Returns the drafts of the items that the user skipped and can still answer."""
    free = QueueSlot.objects.free_at(timezone.now()).filter(item=OuterRef("item"))
    return QueueDraft.objects.filter(Exists(free), item__queue=queue, user=user).exclude(skipped_at=None)


def reoffer_skipped_items(queue: Queue, user: User) -> int:
    """Offers the items that the user skipped to them again, one after the other. Returns their number."""
    check_open(queue)
    return find_skipped(queue, user).update(skipped_at=None)


def submit_answers(
    item: QueueItem,
    user: User,
    answers: Mapping[str, Mapping[str, Any]],
    *,
    seconds: float | None = None,
    was_shown: bool = True,
) -> LabelAction:
    """Stores the answers as labels and completes the slot, or replaces the answers of a completed one.

    `answers` is {question: {value, rationale, start, end}}; for a queue of groups see `orders.py` and `pairs.py`.
    `seconds`: the time that the user had the item open, measured by the page. `was_shown` is that of
    `find_removable_names`. Raises InvalidInputError if an answer is missing or not valid, SlotTakenError if another
    person has the slot now, and QueueClosedError. Then the answers are a draft.
    """
    try:
        check_open(item.queue)
        rows = build_answers(item, user, answers, was_shown=was_shown)
        return complete_item(item, user, rows, seconds)
    except InvalidInputError:
        save_draft(item, user, {name: dict(answer) for name, answer in answers.items()})
        raise


def complete_item(item: QueueItem, user: User, rows: Sequence[Answer], seconds: float | None) -> LabelAction:
    """Stores the labels and completes the slot that the user has, or a free one. Raises SlotTakenError."""
    with transaction.atomic(), delay_notifications():
        own = item.slots.select_for_update(no_key=True).filter(user=user)
        locked = own.first() or own.get(pk=claim_item(item, user).pk)
        now = timezone.now()
        try:
            action = store_labels(item.run, user, rows, rubric=load_queue_rubric(item.queue))
        except NotFoundError:  # its message names the run, which a blind queue hides
            raise NotFoundError(_("The sample of this item is no longer available. Skip the item."), "item") from None
        measured = (now - locked.opened_at).total_seconds() if locked.opened_at else 0.0
        locked.seconds = locked.seconds or min(MAX_SECONDS, max(0.0, measured if seconds is None else seconds))
        locked.done_at, locked.reserved_until = now, None
        changed = ["done_at", "reserved_until", "seconds"]
        if action.pk:  # else the action before stays, unless `store_labels` has just deleted it
            locked.action = action
            changed.append("action")
        locked.save(update_fields=changed)
        QueueDraft.objects.filter(item=item, user=user).delete()
    notify_topics("queues", sparse=True)
    return action


def build_answers(
    item: QueueItem, user: User, answers: Mapping[str, Mapping[str, Any]], *, was_shown: bool = True
) -> list[Answer]:
    """Returns the labels to store. "Cannot judge" is an answer to all questions: it replaces also what another queue
    got. Raises InvalidInputError."""
    questions = {question.key: question for question in list_questions(item.queue)}
    given = {name: answer for name, answer in answers.items() if answer.get("value") not in (None, "", [])}
    known = [*questions, *sorted(EXTRA_KEYS)]
    if unknown := next((name for name in given if name not in known), None):
        message = _("This queue does not ask {name}. It asks: {known}.")
        raise InvalidInputError(message.format(name=repr(unknown[:40]), known=", ".join(known)), unknown[:40])
    cannot_judge = given.get(REVIEW_QUESTION.key, {}).get("value") == CANNOT_JUDGE
    missing = [question for question in questions.values() if question.required and question.key not in given]
    if missing and not cannot_judge:
        message = _("Answer the required question “{title}”, or choose “cannot judge”.")
        raise InvalidInputError(message.format(title=missing[0].title), missing[0].key)
    if not given:
        raise InvalidInputError(_("Answer at least one question, or skip the item."), next(iter(questions), ""))
    removable = find_removable_names(item, user, was_shown=was_shown) | (set(questions) if cannot_judge else set())
    rows = []
    for name in known:
        answer = given.get(name)
        if answer is not None:
            details = {key: answer[key] for key in ("rationale", "start", "end") if answer.get(key) not in (None, "")}
            rows.append(Answer(item.sample, name, answer["value"], **details))
        elif name in removable:
            rows.append(Answer(item.sample, name, None))  # an answer that was removed
    return rows


def find_removable_names(item: QueueItem, user: User, *, was_shown: bool) -> set[str]:
    """Returns the names of the labels of the user that are removed if they are not given.

    A first answer removes nothing, since another queue may have asked the same about the sample. Later the page shows
    what the user has said, also in another queue. Unless it `was_shown` to them, as when a first answer is sent again,
    only what they said here is removed. Their OK stays next to other answers."""
    own = item.slots.filter(user=user, done_at__isnull=False).first()
    if own is None:
        return set()
    labels = load_own_labels([item.sample], user) if was_shown else own.find_labels(user)
    return set(labels.exclude(name=REVIEW_QUESTION.key, answer=OK_ANSWER).values_list("name", flat=True))


def undo_submission(queue: Queue, user: User) -> QueueItem:
    """Opens the item again that the user answered last in this queue, and undoes its labels. The answers are kept as a
    draft. Raises NotFoundError if there is nothing to undo."""
    since = timezone.now() - UNDO_WINDOW
    done = queue.slots.filter(user=user, done_at__gt=since).select_related("item__run", "item__queue", "action")
    slot = done.order_by("-done_at", "-pk").first()
    if slot is None:
        raise NotFoundError(_("Nothing to undo in this queue. You can undo your own answers of the last 24 hours."))
    check_open(queue)
    entered = load_entered_answers(slot.item, user)
    now = timezone.now()
    with transaction.atomic(), delay_notifications():
        until = now + timedelta(minutes=queue.reservation_minutes)
        rows = QueueSlot.objects.filter(pk=slot.pk, user=user, done_at=slot.done_at)
        if not rows.update(done_at=None, reserved_until=until, opened_at=now, seconds=None, action=None):
            raise ConflictError(_("This answer was just changed in another window. Load the page again."))
        if slot.action and slot.action.undone_at is None and is_newest_action(slot.action):
            undo_label_action(slot.item.run, user)
        withdraw_answers(slot, user)
        save_draft(slot.item, user, entered)
    notify_topics("queues", sparse=True)
    item: QueueItem = slot.item
    return item


def withdraw_answers(slot: QueueSlot, user: User) -> None:
    """Withdraws what an undo has left of the answers: it takes back their last change only. If the user has answered
    the sample or the group in another queue too, they stay: they are the answers of that queue as well."""
    item = slot.item
    same: dict[str, Any] = (
        {"step": item.step_id, "group": item.group} if item.group else {"sample": item.sample, "group": ""}
    )
    shared = QueueSlot.objects.filter(user=user, done_at__isnull=False, item__in=QueueItem.objects.filter(**same))
    if shared.exclude(pk=slot.pk).exists():
        return
    rows = [Answer(label.sample, label.name, None) for label in slot.find_labels(user)]
    if rows:
        with suppress(NotFoundError):  # of a sample that is gone; its labels are read by nobody
            store_labels(item.run, user, rows, rubric=load_queue_rubric(item.queue))


def is_newest_action(action: LabelAction) -> bool:
    """Whether an undo of the user in this run undoes this action."""
    rows = LabelAction.objects.filter(run=action.run_id, user=action.user_id, undone_at=None)
    return rows.order_by("-created_at", "-pk").values_list("pk", flat=True).first() == action.pk
