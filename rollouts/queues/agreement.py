"""How far people agree on the answers to a queue, where they differ, and how they do on known items.

Someone who completed an item and chose none of the options of a multiple choice answered with the empty set. "Cannot
judge" is an answer to all questions: a difference in the lists, and missing in the coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import gettext as _

from rollouts import agreement
from rollouts.agreement import Accuracy, Agreement, ItemAnswer, OrderAgreement
from rollouts.errors import NotFoundError
from rollouts.labels import REVIEW_QUESTION, Question
from rollouts.models import Label, Queue, QueueItem
from rollouts.queues.answers import ItemAnswers, load_answers
from rollouts.queues.group_answers import GroupAnswers, load_group_answers
from rollouts.queues.slots import CANNOT_JUDGE, list_questions

# Ratings of more values than this are different if they are two or more apart.
MAX_STRICT_RATINGS: Final = 3


@dataclass(frozen=True, slots=True)
class QuestionAgreement:
    """Agreement on a question, or on one `option` of a multiple choice as a question of yes and no. `differing` are ids
    of items, in the order of the queue. `accuracy` is that of each person on the known items."""

    question: Question
    option: str
    agreement: Agreement
    differing: tuple[int, ...]
    accuracy: tuple[Accuracy, ...]

    @property
    def tolerance(self) -> int:
        return get_tolerance(self.question)


@dataclass(frozen=True, slots=True)
class QueueAgreement:
    """`items` are all of the queue, `shared` those that two or more people completed. `answers` has the completed ones
    by id. A queue of groups has no `questions`, but `orders`, also for pairs, and `groups` by id."""

    items: int
    shared: int
    questions: tuple[QuestionAgreement, ...]
    answers: dict[int, ItemAnswers]
    orders: OrderAgreement | None = None
    groups: dict[int, GroupAnswers] = field(default_factory=dict)

    def list_differing(self, name: str = "") -> dict[int, list[str]]:
        """Returns the items on which people differ, with the questions, in the order of the queue; with `name` only in
        this question."""
        found: dict[int, list[str]] = {}
        for row in self.questions:
            if not row.option and name in ("", row.question.key):
                for item in row.differing:
                    found.setdefault(item, []).append(row.question.key)
        return {item: found[item] for item in self.answers if item in found}

    def is_decided(self, item: int, names: Iterable[str]) -> bool:
        return all(name in self.answers[item].decided for name in names)


def measure_queue_agreement(queue: Queue) -> QueueAgreement:
    if queue.unit == Queue.Unit.GROUP:
        return measure_group_agreement(queue)
    entries, questions = load_answers(queue), list_questions(queue)
    answers = {entry.item.pk: entry for entry in entries}
    rows: list[QuestionAgreement] = []
    for question in questions:
        given = [answer for entry in entries for answer in list_given(entry, question)]
        known = {pk: entry.item.gold or {} for pk, entry in answers.items()}
        gold = {pk: values[question.key] for pk, values in known.items() if question.key in values}
        rows.append(measure_question(question, given, gold))
        if question.kind == "choices":
            options = agreement.split_choices(given, [option.key for option in question.options])
            for option, parts in options.items():
                expected = {item: option in value for item, value in gold.items() if isinstance(value, list)}
                rows.append(measure_question(question, parts, expected, option))
    shared = sum(len(entry.people) > 1 for entry in entries)
    return QueueAgreement(queue.items.count(), shared, tuple(rows), answers)


def measure_group_agreement(queue: Queue) -> QueueAgreement:
    groups = {entry.item.pk: entry for entry in load_group_answers(queue)}
    shared = sum(len(entry.people) > 1 for entry in groups.values())
    signs = (answer for entry in groups.values() for answer in entry.list_signs())
    orders = agreement.measure_order_agreement(signs)
    return QueueAgreement(queue.items.count(), shared, (), {}, orders, groups)


def measure_question(
    question: Question, given: list[ItemAnswer], gold: dict[Any, Any], option: str = ""
) -> QuestionAgreement:
    kind = "yes-no" if option else question.kind
    tolerance = get_tolerance(question)
    differing = () if kind == "text" else agreement.find_disagreements(given, kind, tolerance)
    return QuestionAgreement(
        question,
        option,
        agreement.measure_agreement(given, kind),
        tuple(int(str(row.item)) for row in differing),
        agreement.measure_accuracy(given, gold, kind, tolerance) if gold and kind != "text" else (),
    )


def get_tolerance(question: Question) -> int:
    return 1 if len(question.ratings) > MAX_STRICT_RATINGS else 0


def list_given(entry: ItemAnswers, question: Question) -> list[ItemAnswer]:
    """Returns what people who completed the item answered to the question."""
    values = entry.answers.get(question.key, {})
    given = []
    for person in sorted(entry.people):
        value = values.get(person)
        if value is None and entry.answers.get(REVIEW_QUESTION.key, {}).get(person) == CANNOT_JUDGE:
            value = agreement.CANNOT_JUDGE
        elif value is None and question.kind == "choices":
            value = []
        given.append(ItemAnswer(entry.item.pk, person, value))
    return given


def load_answer_of(item: QueueItem, name: str, author: str) -> Any:
    """Returns what this person answered. Raises NotFoundError."""
    rows = Label.objects.active().filter(sample=item.sample, author=author, source="human")
    if label := rows.filter(name=name).first():
        return label.value
    asked = any(question.key == name and question.kind == "choices" for question in list_questions(item.queue))
    has_completed = asked and item.slots.filter(user__username=author, done_at__isnull=False).exists()
    if has_completed and not rows.filter(name=REVIEW_QUESTION.key, answer=f" {CANNOT_JUDGE} ").exists():
        return []
    message = _("{user} has not answered this question.")
    raise NotFoundError(message.format(user=author[:40]), "author")
