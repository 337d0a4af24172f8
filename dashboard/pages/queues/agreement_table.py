"""The table of the agreement of people on a queue, with the confusion of their answers and the known items."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from rollouts import queues
from rollouts.agreement import CANNOT_JUDGE, Accuracy
from rollouts.labels import Question
from rollouts.models import Queue

MAX_CONFUSION = 12  # values of a confusion table
LIST_ID = "to-decide"


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """A line of the table. `link` opens its details and filters the list."""

    row: queues.QuestionAgreement
    title: str
    kind: str
    measure: str
    link: str
    is_chosen: bool
    note: str = ""

    @property
    def differing(self) -> int:
        return len(self.row.differing)


@dataclass(frozen=True, slots=True)
class GoldLine:
    """How a person does on the known items, in one question."""

    question: str
    accuracy: Accuracy


def build_link(queue: Queue, **params: Any) -> str:
    """The page with these parameters, scrolled to the list if one of them selects its items."""
    query = urlencode({name: value for name, value in params.items() if value})
    anchor = f"#{LIST_ID}" if "item" in params or "show" in params else ""
    return reverse("queue-agreement", args=[queue.pk]) + (f"?{query}" if query else "") + anchor


def build_question_rows(measured: queues.QueueAgreement, queue: Queue, name: str) -> list[QuestionRow]:
    rows = []
    for row in measured.questions:
        question = row.question
        options = dict(question.shown_options)
        link = build_link(queue, question="" if name == question.key else question.key)
        note = _("counted when 2 or more apart") if row.tolerance else ""
        title = options[row.option] if row.option else question.shown_title
        kind = _("of “{title}”").format(title=question.shown_title) if row.option else name_kind(question)
        is_chosen = name == question.key and not row.option
        rows.append(QuestionRow(row, title, kind, name_level(row.agreement.level), link, is_chosen, note))
    return rows


def name_kind(question: Question) -> str:
    if question.kind == "rating":
        return _("rating {low}–{high}").format(low=question.ratings[0], high=question.ratings[-1])
    kinds = {
        "choice": _("one choice"), "choices": _("several choices"), "number": _("number"), "text": _("text"),
        "yes-no": _("yes or no"),
    }  # fmt: skip
    return kinds[question.kind]


def name_level(level: str) -> str:
    levels = {
        "nominal": _("alpha, nominal"), "ordinal": _("alpha, ordinal"), "interval": _("alpha, interval"),
        "set": _("alpha, sets (MASI)"),
    }  # fmt: skip
    return levels.get(level, "")


def choose_row(measured: queues.QueueAgreement, name: str) -> queues.QuestionAgreement | None:
    """The question whose details are shown: the named one, else the first one."""
    rows = [row for row in measured.questions if not row.option and row.question.kind != "text"]
    return next((row for row in rows if row.question.key == name), rows[0] if rows else None)


def build_confusion_table(row: queues.QuestionAgreement) -> dict[str, Any]:
    """Names of the values and, for each row, its cells; empty if there are too many values for a table."""
    confusion = row.agreement.confusion
    if confusion is None or len(confusion.values) > MAX_CONFUSION:
        return {}
    names = [format_value(row.question, value) for value in confusion.values]
    lines = [
        (name, [(count, at == other) for other, count in enumerate(counts)])
        for at, (name, counts) in enumerate(zip(names, confusion.counts, strict=True))
    ]
    return {"names": names, "lines": lines, "total": sum(map(sum, confusion.counts))}


def format_value(question: Question, value: Any) -> str:
    """An answer for people. An empty choice of several is `none`."""
    if value == CANNOT_JUDGE:
        return _("cannot judge")
    if isinstance(value, list | tuple):
        return question.format_value(list(value)) or _("none")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return question.format_value(value)


def list_gold(measured: queues.QueueAgreement) -> list[GoldLine]:
    return [
        GoldLine(row.question.shown_title, accuracy)
        for row in measured.questions
        if not row.option
        for accuracy in row.accuracy
        if accuracy.judged or accuracy.cannot_judge
    ]
