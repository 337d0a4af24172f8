"""The questions of a rubric, and the answers that they accept. Knows no table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rolloutdeck.protocol import MAX_TEXT_ANSWER_CHARS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_multiline_text

KINDS: Final = ("choice", "choices", "rating", "number", "text", "yes-no")
MAX_GUIDELINES_CHARS: Final = 50_000
MAX_NAMED_SAMPLES: Final = 1_000
SAMPLE_ID: Final = re.compile(r"[!-~]{1,52}")
MAX_EXACT: Final = 2**53  # a float has each integer below it
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


def is_finite(value: float) -> bool:
    return abs(value) < 1e300


def format_number(number: float) -> str:
    return f"{number:.15g}"


def dump_questions(questions: Iterable[Question]) -> list[dict[str, Any]]:
    return [question.to_json() for question in questions]
