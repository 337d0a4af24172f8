"""The questions of a rubric: parsed from JSON, and the answers that they accept. Knows no table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rolloutdeck.protocol import MAX_TEXT_ANSWER_CHARS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_multiline_text, parse_text

KINDS: Final = ("choice", "choices", "rating", "number", "text", "yes-no")
MAX_QUESTIONS: Final = 40
MAX_OPTIONS: Final = 60
MAX_KEY_CHARS: Final = 40
MAX_TITLE_CHARS: Final = 120
MAX_DESCRIPTION_CHARS: Final = 4_000
MAX_GUIDELINES_CHARS: Final = 50_000
MAX_RATING_STEPS: Final = 20
MAX_NAMED_SAMPLES: Final = 1_000
MAX_EXACT: Final = 2**53  # a float has each integer below it
SAMPLE_ID: Final = re.compile(r"[!-~]{1,52}")
KEY: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?")
DEFAULT_RATING: Final = (1, 5)
FIELDS: Final = ("key", "title", "kind", "options", "minimum", "maximum", "required", "description", "range")


class ParsedValue(NamedTuple):
    """A value as it is stored; `number` and `answer` are the columns of `Label` that queries use."""

    value: Any
    number: float | None
    answer: str


@dataclass(frozen=True, slots=True)
class Option:
    key: str
    title: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `minimum` and `maximum` are bounds of a rating (always set) or a number. `range`: an answer may
    mark a part of the response."""

    key: str
    title: str
    kind: str
    options: tuple[Option, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False
    description: str = ""
    range: bool = False

    @property
    def is_built_in(self) -> bool:
        """Whether the product has written its texts. A project cannot use the key of such a question."""
        return self.key in BUILT_IN_QUESTIONS or self.key == FLAG_QUESTION.key

    @property
    def shown_title(self) -> str:
        """The title for people: texts of the product are translated, those of a project are not."""
        return _(self.title) if self.is_built_in else self.title

    @property
    def shown_options(self) -> list[tuple[str, str]]:
        """The keys of the options with their titles for people, see `shown_title`."""
        return [(option.key, _(option.title) if self.is_built_in else option.title) for option in self.options]

    @property
    def has_options(self) -> bool:
        return self.kind in ("choice", "choices")

    @property
    def ratings(self) -> list[int]:
        """The values of a rating."""
        return list(range(int(self.minimum or 0), int(self.maximum or 0) + 1)) if self.kind == "rating" else []

    def to_json(self) -> dict[str, Any]:
        """Returns what `parse_questions` reads, without the parts that the kind does not have."""
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        return {
            "key": self.key,
            "title": self.title,
            "kind": self.kind,
            **({"options": [{"key": o.key, "title": o.title} for o in self.options]} if self.has_options else {}),
            **{name: bound for name, bound in bounds.items() if bound is not None},
            "required": self.required,
            "description": self.description,
            "range": self.range,
        }

    def parse_value(self, value: Any) -> ParsedValue:
        """Returns a valid answer. Raises InvalidInputError, which names the question and what it accepts."""
        match self.kind:
            case "samples":
                return self.parse_samples(value)
            case "yes-no":
                if not isinstance(value, bool):
                    raise self.build_error(_("true or false"))
                return ParsedValue(value, float(value), " yes " if value else " no ")
            case "text":
                limit = int(self.maximum or MAX_TEXT_ANSWER_CHARS)
                text = parse_multiline_text(value, self.key, max_chars=limit).strip()
                if not text:
                    raise self.build_error(_("a text that is not empty"))
                return ParsedValue(text, None, text)
            case "choice":
                keys = self.parse_keys([value])
                return ParsedValue(keys[0], None, f" {keys[0]} ")
            case "choices":
                keys = self.parse_keys(value)
                return ParsedValue(keys, None, f" {' '.join(keys)} ")
        return self.parse_number(value)

    def accepts(self, value: Any) -> bool:
        """Returns whether a stored answer is one to this version of the question: an earlier one may have had another
        kind, or other options. Of several choices some may be gone, and a single choice is one of several."""
        if self.kind == "choices":
            known = {option.key for option in self.options}
            keys = [value] if isinstance(value, str) else value
            return isinstance(keys, list) and (not keys or not known.isdisjoint(map(str, keys)))
        try:
            self.parse_value(value)
        except InvalidInputError:
            return False
        return True

    def parse_keys(self, value: Any) -> list[str]:
        """Returns the chosen keys in the order of the question."""
        known = [option.key for option in self.options]
        is_valid = isinstance(value, list) and value and all(isinstance(key, str) and key in known for key in value)
        if not is_valid:
            expected = _("one of {known}") if self.kind == "choice" else _("a list of one or more of {known}")
            raise self.build_error(expected.format(known=", ".join(known)))
        return [key for key in known if key in value]

    def parse_samples(self, value: Any) -> ParsedValue:
        """Ids of other samples, in their order, each once."""
        is_valid = isinstance(value, list) and all(isinstance(key, str) and SAMPLE_ID.fullmatch(key) for key in value)
        if not is_valid or not 1 <= len(set(value)) <= MAX_NAMED_SAMPLES:
            raise self.build_error(_("a list of ids of samples"))
        ids = list(dict.fromkeys(value))
        return ParsedValue(ids, None, f" {' '.join(ids)} ")

    def parse_number(self, value: Any) -> ParsedValue:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        if not is_number or not low <= value <= high or (self.kind == "rating" and value != int(value)):
            expected = _("a whole number") if self.kind == "rating" else _("a number")
            if self.minimum is not None:
                expected = _("{number} from {bound}").format(number=expected, bound=format_number(self.minimum))
            if self.maximum is not None:
                expected = _("{number} up to {bound}").format(number=expected, bound=format_number(self.maximum))
            raise self.build_error(expected)
        is_exact = abs(value) < MAX_EXACT and value == int(value)
        number = int(value) if is_exact else float(value)  # JSON encoders refuse integers of more than 64 bits
        return ParsedValue(number, float(value), f" {format_number(number)} ")

    def build_error(self, expected: str) -> InvalidInputError:
        message = _("The answer to `{key}` must be {expected}.")
        return InvalidInputError(message.format(key=self.key, expected=expected), self.key)

    def format_value(self, value: Any) -> str:
        """Returns an answer for people: titles of options, yes or no in the user's language."""
        if isinstance(value, bool):
            return _("yes") if value else _("no")
        titles = dict(self.shown_options)
        if isinstance(value, list):
            return ", ".join(titles.get(key, str(key)) for key in value)
        return titles.get(value, value) if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class RubricVersion:
    """A version of a project's rubric. `pk` is its row, None for the default rubric, which has the number 0."""

    number: int
    questions: tuple[Question, ...]
    guidelines: str = ""
    pk: int | None = None
    created_by: str = ""
    created_at: Any = field(default=None, compare=False)

    def find(self, key: str) -> Question | None:
        return next((question for question in self.questions if question.key == key), None)


REVIEW_QUESTION: Final = Question(
    "review",
    N_("Review"),
    "choice",
    (Option("ok", N_("OK")), Option("cannot-judge", N_("cannot judge"))),
    required=True,
)
FLAG_QUESTION: Final = Question(
    "flag", N_("Flag"), "choice", (Option("bad", N_("bad")), Option("good", N_("good")), Option("unsure", N_("unsure")))
)
RANK_QUESTION: Final = Question("rank", N_("Rank"), "number", minimum=1)  # among the responses of a group
CORRECTION_QUESTION: Final = Question("correction", N_("Correction"), "text", maximum=200_000)  # a better response
# Of two responses of a group, the better one has the id of the other one; of equal ones the first one has it.
BETTER_QUESTION: Final = Question("better-than", N_("Better than"), "samples")
EQUAL_QUESTION: Final = Question("equal-to", N_("As good as"), "samples")
# Their answers are ids of other samples of the group.
PAIR_QUESTIONS: Final = (BETTER_QUESTION.key, EQUAL_QUESTION.key)
# Questions that belong to every rubric, next to flags.
BUILT_IN_QUESTIONS: Final = {
    question.key: question
    for question in (REVIEW_QUESTION, RANK_QUESTION, CORRECTION_QUESTION, BETTER_QUESTION, EQUAL_QUESTION)
}
DEFAULT_RUBRIC: Final = RubricVersion(0, (REVIEW_QUESTION,))


def parse_questions(rows: Any) -> tuple[Question, ...]:
    """Parses the questions of a rubric. Raises InvalidInputError with the field of the wrong part, for example
    `questions.2.options.0.key`."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_QUESTIONS:
        message = _("`questions` must be a list of 1 to {limit} questions.")
        raise InvalidInputError(message.format(limit=MAX_QUESTIONS), "questions")
    questions = tuple(parse_question(row, f"questions.{at}") for at, row in enumerate(rows))
    check_unique([question.key for question in questions], "questions")
    return questions


def parse_question(row: Any, at: str) -> Question:
    if not isinstance(row, Mapping):
        raise InvalidInputError(_("Each question must be an object with key, title and kind."), at)
    key = parse_key(row.get("key"), f"{at}.key")
    if key.startswith("flag") or key in BUILT_IN_QUESTIONS:
        message = _("The key `{key}` is reserved. Use one that does not start with `flag` and is not {reserved}.")
        reserved = ", ".join(BUILT_IN_QUESTIONS)
        raise InvalidInputError(message.format(key=key, reserved=reserved), f"{at}.key")
    if unknown := sorted(str(name) for name in row if name not in FIELDS):
        message = _("Question `{key}` has the unknown field `{name}`. Available: {known}.")
        text = message.format(key=key, name=unknown[0][:40], known=", ".join(FIELDS))
        raise InvalidInputError(text, f"{at}.{unknown[0][:40]}")
    kind = row.get("kind")
    if kind not in KINDS:
        message = _("The kind of question `{key}` must be one of {known}.")
        raise InvalidInputError(message.format(key=key, known=", ".join(KINDS)), f"{at}.kind")
    minimum, maximum = parse_bounds(row, key, kind, at)
    return Question(
        key,
        parse_text(row.get("title"), f"{at}.title", max_chars=MAX_TITLE_CHARS).strip() or key,
        kind,
        parse_options(row.get("options"), key, kind, at),
        minimum,
        maximum,
        parse_switch(row, "required", key, at),
        parse_multiline_text(row.get("description") or "", f"{at}.description", max_chars=MAX_DESCRIPTION_CHARS),
        parse_switch(row, "range", key, at),
    )


def parse_key(value: Any, field_name: str) -> str:
    if isinstance(value, str) and len(value) <= MAX_KEY_CHARS and KEY.fullmatch(value):
        return value
    message = _("A key has 1 to {limit} characters of a-z, 0-9, - and _, and starts and ends with a letter or digit.")
    raise InvalidInputError(message.format(limit=MAX_KEY_CHARS), field_name)


def parse_switch(row: Mapping[str, Any], name: str, key: str, at: str) -> bool:
    value = row.get(name) or False
    if not isinstance(value, bool):
        message = _("`{name}` of question `{key}` must be true or false.")
        raise InvalidInputError(message.format(name=name, key=key), f"{at}.{name}")
    return value


def parse_options(rows: Any, key: str, kind: str, at: str) -> tuple[Option, ...]:
    if kind not in ("choice", "choices"):
        if rows:
            message = _("Question `{key}` cannot have options: its kind is {kind}.")
            raise InvalidInputError(message.format(key=key, kind=kind), f"{at}.options")
        return ()
    low = 2 if kind == "choice" else 1
    if not isinstance(rows, list) or not low <= len(rows) <= MAX_OPTIONS:
        message = _("Question `{key}` needs {minimum} to {limit} options.")
        raise InvalidInputError(message.format(key=key, minimum=low, limit=MAX_OPTIONS), f"{at}.options")
    options = []
    for position, row in enumerate(rows):
        where = f"{at}.options.{position}"
        if not isinstance(row, Mapping) or not set(row) <= {"key", "title"}:
            raise InvalidInputError(_("An option of `{key}` must be {{key, title}}.").format(key=key), where)
        option = parse_key(row.get("key"), f"{where}.key")
        title = parse_text(row.get("title"), f"{where}.title", max_chars=MAX_TITLE_CHARS).strip()
        options.append(Option(option, title or option))
    check_unique([option.key for option in options], f"{at}.options")
    return tuple(options)


def check_unique(keys: list[str], at: str) -> None:
    for position, key in enumerate(keys):
        if key in keys[:position]:
            message = _("The key `{key}` occurs twice. Give each question and each option its own key.")
            raise InvalidInputError(message.format(key=key), f"{at}.{position}.key")


def parse_bounds(row: Mapping[str, Any], key: str, kind: str, at: str) -> tuple[float | None, float | None]:
    given = {name: row.get(name) for name in ("minimum", "maximum") if row.get(name) is not None}
    if kind not in ("rating", "number"):
        for name in given:
            message = _("Question `{key}` cannot have a {name}: its kind is {kind}.")
            raise InvalidInputError(message.format(key=key, name=name, kind=kind), f"{at}.{name}")
        return None, None
    bounds: list[float | None] = []
    for name, default in zip(("minimum", "maximum"), DEFAULT_RATING, strict=True):
        value = given.get(name, default if kind == "rating" else None)
        is_number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        if not is_number or (value is not None and not is_finite(value)):
            message = _("`{name}` of question `{key}` must be a number.")
            raise InvalidInputError(message.format(name=name, key=key), f"{at}.{name}")
        bounds.append(value)
    low, high = bounds
    if low is not None and high is not None and low >= high:
        message = _("The minimum of question `{key}` must be lower than its maximum.")
        raise InvalidInputError(message.format(key=key), f"{at}.maximum")
    if kind == "rating" and low is not None and high is not None:
        if low != int(low) or high != int(high) or high - low >= MAX_RATING_STEPS:
            message = _("The bounds of rating `{key}` must be whole numbers with at most {limit} values.")
            raise InvalidInputError(message.format(key=key, limit=MAX_RATING_STEPS), f"{at}.maximum")
        return int(low), int(high)
    return low, high


def is_finite(value: float) -> bool:
    return abs(value) < 1e300


def format_number(number: float) -> str:
    return f"{number:.15g}"


def dump_questions(questions: Iterable[Question]) -> list[dict[str, Any]]:
    return [question.to_json() for question in questions]
