"""Answers before they are stored: who says what about which sample, checked against the rubric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.utils.translation import gettext as _

from rolloutdeck.protocol import FLAG_LABELS, MAX_AUTHOR_CHARS
from rollouts.errors import InvalidInputError
from rollouts.labels.questions import BUILT_IN_QUESTIONS, FLAG_QUESTION, REVIEW_QUESTION, Question, RubricVersion
from rollouts.labels.states import LabelState
from rollouts.lib import parse_choice, parse_integer, parse_multiline_text, parse_text
from rollouts.models import FLAG_NAME, FLAG_PREFIX, REVIEW_NAME, Label, Project

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_RATIONALE_CHARS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What an author says about a sample. `name` is the key of a question, `review`, `flag` or `flag.<reason>`.

    `author` is the name of a function or a model if the source is not human. `start` and `end` are characters of the
    response. A `value` of None withdraws the label.
    """

    sample: str
    name: str
    value: Any
    rationale: str = ""
    source: str = "human"
    author: str = ""
    start: int | None = None
    end: int | None = None


class LabelKey(NamedTuple):
    """What identifies a label."""

    sample: str
    name: str
    source: str
    author: str


class CheckedAnswer(NamedTuple):
    key: LabelKey
    value: Any
    state: LabelState


def check_answers(project: Project, rubric: RubricVersion, by: User, answers: Iterable[Answer]) -> list[CheckedAnswer]:
    """Returns the answers as they are stored. Raises InvalidInputError for the first that is not valid."""
    return [check_answer(project, rubric, by, answer) for answer in answers]


def check_answer(
    project: Project, rubric: RubricVersion, by: User, answer: Answer, *, any_author: bool = False
) -> CheckedAnswer:
    """`any_author`: also answers of other people. Raises InvalidInputError."""
    source = parse_choice(answer.source, "source", Label.Source.values, default=Label.Source.HUMAN)
    question = find_question(project, rubric, answer.name)
    is_built_in = question in (REVIEW_QUESTION, FLAG_QUESTION)
    author = check_author(answer.author, source, by, is_built_in=is_built_in, any_author=any_author)
    key = LabelKey(answer.sample, answer.name, source, author)
    if answer.value is None:
        return CheckedAnswer(key, None, LabelState(None, withdrawn=True))
    if question is FLAG_QUESTION and answer.value not in FLAG_LABELS:
        message = _("`label` must be one of {known}, not {label}.")
        label = repr(str(answer.value)[:40])
        raise InvalidInputError(message.format(known=", ".join(FLAG_LABELS), label=label), "label")
    value = question.parse_value(answer.value)
    rationale_field = "text" if question is FLAG_QUESTION else "rationale"
    rationale = parse_multiline_text(answer.rationale, rationale_field, max_chars=MAX_RATIONALE_CHARS)
    start, end = check_range(question, answer.start, answer.end)
    version = rubric.pk if rubric.find(answer.name) and not is_built_in else None
    return CheckedAnswer(key, value.value, LabelState(value.value, rationale, False, start, end, version, value.answer))


def find_question(project: Project, rubric: RubricVersion, name: str) -> Question:
    """Returns the question with this key. Built-in ones and flags belong to every rubric. Raises InvalidInputError."""
    if built_in := BUILT_IN_QUESTIONS.get(name):
        return built_in
    if name == FLAG_NAME or name.startswith(FLAG_PREFIX):
        keys = [str(entry["key"]) for entry in project.reasons]
        if name != FLAG_NAME and (reason := name.removeprefix(FLAG_PREFIX)) not in keys:
            message = _("`reason` must be one of {known}, or empty; not {reason}.")
            raise InvalidInputError(message.format(known=", ".join(keys), reason=repr(reason[:40])), "reason")
        return FLAG_QUESTION
    if question := rubric.find(name):
        return question
    message = _("The rubric has no question `{name}`. Available: {known}. Add it to the rubric of the project first.")
    known = ", ".join([*(question.key for question in rubric.questions if question.key != REVIEW_NAME), REVIEW_NAME])
    raise InvalidInputError(message.format(name=str(name)[:40], known=known), "name")


def check_author(author: str, source: str, by: User, *, is_built_in: bool, any_author: bool = False) -> str:
    """Returns the author that is stored: people label only in their own name, without `any_author`."""
    if source == Label.Source.HUMAN:
        if author and author != by.get_username():
            if any_author:
                return parse_text(author, "author", max_chars=MAX_AUTHOR_CHARS)
            raise InvalidInputError(_("You can label only in your own name. Leave `author` empty."), "author")
        return by.get_username()
    if is_built_in:
        raise InvalidInputError(_("Only people flag samples and mark them OK. Use a question of the rubric."), "source")
    name = parse_text(author, "author", max_chars=MAX_AUTHOR_CHARS).strip()
    if not name:
        message = _("`author` is required for labels of code and models: the name of the function or the model.")
        raise InvalidInputError(message, "author")
    return name


def check_range(question: Question, start: Any, end: Any) -> tuple[int | None, int | None]:
    first, last = parse_integer(start, "start"), parse_integer(end, "end")
    if first is None and last is None:
        return None, None
    if not question.range:
        raise InvalidInputError(_("The question `{key}` does not ask for a range.").format(key=question.key), "start")
    if first is None or last is None or first >= last:
        raise InvalidInputError(_("A range needs `start` and a larger `end`."), "end")
    return first, last


def format_answer(project: Project, rubric: RubricVersion, name: str, value: Any) -> str:
    """Returns an answer for people: a flag as its reason and its label, others as title and value."""
    if name == FLAG_NAME or name.startswith(FLAG_PREFIX):
        reason, label = name.removeprefix(FLAG_PREFIX) if name != FLAG_NAME else "", str(value or "")
        if not reason:
            return _("“{label}”").format(label=_(label) if label else _("flag"))
        names = {str(entry["key"]): str(entry["name"]) for entry in project.reasons}
        return _("“{reason}” ({label})").format(reason=_(names.get(reason, reason)), label=_(label) if label else "–")
    question = BUILT_IN_QUESTIONS.get(name) or rubric.find(name)
    shown = "–" if value is None else question.format_value(value) if question else str(value)
    if name == REVIEW_NAME:
        return _("“{label}”").format(label=shown)
    return _("“{question}: {value}”").format(question=question.title if question else name, value=shown[:60])
