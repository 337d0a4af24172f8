"""Parses the questions of a rubric from JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels.questions import BUILT_IN_QUESTIONS, FIELDS, KINDS, Option, Question, is_finite
from rollouts.lib import parse_multiline_text, parse_text

MAX_QUESTIONS: Final = 40
MAX_OPTIONS: Final = 60
MAX_KEY_CHARS: Final = 40
MAX_TITLE_CHARS: Final = 120
MAX_DESCRIPTION_CHARS: Final = 4_000
MAX_RATING_STEPS: Final = 20
KEY: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]*[a-z0-9])?")
DEFAULT_RATING: Final = (1, 5)


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
