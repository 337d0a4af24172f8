"""The form that answers the questions of a rubric about one sample, and the preview of a rubric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels import REVIEW_QUESTION, Answer, Question, RubricVersion
from rollouts.samples.responses import find_passage

if TYPE_CHECKING:
    from django.http import QueryDict

    from rollouts.models import Label


@dataclass(frozen=True, slots=True)
class AnswerField:
    """One question with what was answered. `chosen` are the values of its inputs, `quote` a part of the response."""

    question: Question
    chosen: tuple[str, ...] = ()
    rationale: str = ""
    quote: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        return self.chosen[0] if self.chosen else ""

    @property
    def choices(self) -> list[tuple[str, str, bool]]:
        """[(value, title, is chosen)] of radio buttons or checkboxes; empty for texts and numbers."""
        question = self.question
        match question.kind:
            case "choice" | "choices":
                pairs = question.shown_options
            case "rating":
                pairs = [(str(number), str(number)) for number in question.ratings]
            case "yes-no":
                pairs = [("yes", _("yes")), ("no", _("no"))]
            case _:
                pairs = []
        return [(value, title, value in self.chosen) for value, title in pairs]

    @property
    def offered(self) -> tuple[str, ...]:
        """The part of `chosen` that an input can show: an option of an earlier version has none."""
        return tuple(value for value, _title, is_chosen in self.choices if is_chosen) if self.choices else self.chosen

    @property
    def gone(self) -> str:
        """What was answered and is no longer a choice."""
        return ", ".join(value for value in self.chosen if value not in self.offered)


@dataclass(slots=True)
class AnswerForm:
    """`error` is one that belongs to no question."""

    fields: list[AnswerField]
    answers: list[Answer] = field(default_factory=list)
    error: str = ""

    @property
    def has_errors(self) -> bool:
        return bool(self.error) or any(entry.error for entry in self.fields)

    def add_error(self, error: InvalidInputError) -> None:
        """Shows the error at the question that it names."""
        keys = [entry.question.key for entry in self.fields]
        if error.field not in keys:
            self.error = str(error)
            return
        at = keys.index(error.field)
        self.fields[at] = replace(self.fields[at], error=str(error))


def list_questions(rubric: RubricVersion) -> list[Question]:
    """Returns the rubric's questions, then the one that every rubric has."""
    if rubric.find(REVIEW_QUESTION.key):
        return list(rubric.questions)
    return [*rubric.questions, replace(REVIEW_QUESTION, required=False)]


def build_preview(questions: Iterable[Question]) -> list[AnswerField]:
    return [AnswerField(question) for question in questions]


def build_answer_form(rubric: RubricVersion, own: Mapping[str, Label], response: str) -> AnswerForm:
    """Returns the form with the user's current answers."""
    return AnswerForm([fill_field(question, own.get(question.key), response) for question in list_questions(rubric)])


def fill_field(question: Question, label: Label | None, response: str) -> AnswerField:
    if label is None:
        return AnswerField(question)
    value = label.value
    if isinstance(value, bool):
        chosen: tuple[str, ...] = ("yes" if value else "no",)
    else:
        chosen = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
    quote = "" if label.start is None else response[label.start : label.end]
    return AnswerField(question, chosen, label.rationale, quote)


def parse_answer_form(
    form: QueryDict, rubric: RubricVersion, own: Mapping[str, Label], sample: str, response: str
) -> AnswerForm:
    """Returns what was typed, with the answers or the errors. An empty answer withdraws the present one. What was left
    as it is, is no answer: it keeps its version of the rubric, and an answer that this version does not offer stays."""
    result = AnswerForm([])
    for question in list_questions(rubric):
        key = question.key
        chosen = tuple(value for value in form.getlist(f"value:{key}") if value.strip())
        rationale, quote = (clean_text(form.get(f"{name}:{key}", "")) for name in ("rationale", "quote"))
        entry = AnswerField(question, chosen, rationale, quote)
        shown, has_withdrawn = fill_field(question, own.get(key), response), f"value:{key}" in form and not chosen
        if is_unchanged(entry, shown, has_withdrawn=has_withdrawn):
            result.fields.append(shown)
            continue
        try:
            if shown.gone and not (chosen or shown.offered or has_withdrawn):
                raise InvalidInputError(_("Choose an answer, since your earlier one is no longer a choice."))
            label = own.get(key)
            near = label.start if label and label.start is not None else 0
            if answer := parse_answer(entry, sample, response, near=near, is_answered=label is not None):
                result.answers.append(answer)
        except InvalidInputError as error:
            entry = replace(entry, error=str(error))
        result.fields.append(entry)
    return result


def is_unchanged(entry: AnswerField, shown: AnswerField, *, has_withdrawn: bool) -> bool:
    """Returns whether the form has what it showed. `has_withdrawn`: "no answer" was chosen, or a text removed."""
    if not shown.chosen or has_withdrawn or (entry.question.required and not entry.chosen):
        return False
    same = (shown.offered, clean_text(shown.rationale), clean_text(shown.quote))
    return (entry.chosen, entry.rationale, entry.quote) == same


def clean_text(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def parse_answer(
    entry: AnswerField, sample: str, response: str, *, near: int = 0, is_answered: bool = False
) -> Answer | None:
    """`near` is where the marked part begins if its text occurs several times. Raises InvalidInputError."""
    question = entry.question
    if not entry.chosen:
        if question.required:
            raise InvalidInputError(_("This question needs an answer."))
        return Answer(sample, question.key, None) if is_answered else None
    value = question.parse_value(convert_value(question, entry.chosen)).value
    start = end = None
    if entry.quote and question.range:
        span = find_passage(response, entry.quote, near)
        if span is None:
            raise InvalidInputError(_("The response does not contain this text. Copy a part of it exactly."))
        start, end = span
    return Answer(sample, question.key, value, entry.rationale, start=start, end=end)


def convert_value(question: Question, chosen: tuple[str, ...]) -> Any:
    """Returns the value of the inputs as JSON would have it."""
    match question.kind:
        case "choices":
            return list(chosen)
        case "yes-no":
            return {"yes": True, "no": False}.get(chosen[0], chosen[0])
        case "rating" | "number":
            return parse_decimal(chosen[0])
    return chosen[0]


def parse_decimal(text: str) -> Any:
    """Returns a number, else the text, which is then refused as no number."""
    try:
        return float(text)
    except ValueError:
        return text
