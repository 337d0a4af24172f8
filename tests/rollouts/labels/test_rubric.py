"""Which questions a rubric may have, and which answers they accept."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import translation

from rollouts.errors import InvalidInputError
from rollouts.labels import BUILT_IN_QUESTIONS, dump_questions, parse_questions

CORRECT = {
    "key": "correct",
    "title": "Is it right?",
    "kind": "yes-no",
    "required": True,
    "description": "**Check** it.",
}
ERRORS = {
    "key": "errors",
    "kind": "choices",
    "options": [{"key": "logic", "title": "逻辑"}, {"key": "sum"}],
    "range": True,
}
STYLE = {"key": "style", "kind": "choice", "options": [{"key": "good"}, {"key": "bad"}]}
QUALITY = {"key": "quality", "kind": "rating"}
COST = {"key": "cost", "kind": "number", "minimum": 0}
NOTE = {"key": "note", "kind": "text"}
ROWS: list[dict[str, Any]] = [CORRECT, ERRORS, STYLE, QUALITY, COST, NOTE]


def test_questions_are_the_same_after_they_are_stored() -> None:
    questions = parse_questions(ROWS)
    assert parse_questions(dump_questions(questions)) == questions
    assert [question.title for question in questions[:2]] == ["Is it right?", "errors"]
    assert (questions[3].ratings, questions[4].maximum) == ([1, 2, 3, 4, 5], None)


def test_only_texts_of_the_product_are_translated() -> None:
    row = {"key": "why", "title": "Note", "kind": "choices", "options": [{"key": "mix", "title": "Language mix"}]}
    [own] = parse_questions([row])
    review = BUILT_IN_QUESTIONS["review"]
    with translation.override("zh-hans"):
        assert (own.shown_title, own.shown_options) == ("Note", [("mix", "Language mix")])
        assert own.format_value(["mix"]) == "Language mix"
        assert BUILT_IN_QUESTIONS["correction"].shown_title == "更正"
        assert (review.shown_options[0], review.format_value("ok")) == (("ok", "没问题"), "没问题")


@pytest.mark.parametrize(
    ("rows", "field", "message"),
    [
        ([], "questions", "1 to 40 questions"),
        ({"key": "a"}, "questions", "must be a list"),
        (["a"], "questions.0", "must be an object"),
        ([{"kind": "text"}], "questions.0.key", "A key has 1 to 40 characters"),
        ([{"key": "Größe", "kind": "text"}], "questions.0.key", "of a-z, 0-9"),
        ([{"key": "review", "kind": "text"}], "questions.0.key", "reserved"),
        ([NOTE, {"key": "flagged", "kind": "text"}], "questions.1.key", "reserved"),
        ([NOTE, NOTE], "questions.1.key", "occurs twice"),
        ([{**NOTE, "kind": "essay"}], "questions.0.kind", "must be one of choice, choices, rating"),
        ([{**NOTE, "colour": "red"}], "questions.0.colour", "unknown field `colour`"),
        ([{**NOTE, "required": "yes"}], "questions.0.required", "true or false"),
        ([{**NOTE, "options": [{"key": "a"}]}], "questions.0.options", "cannot have options"),
        ([{**NOTE, "maximum": 3}], "questions.0.maximum", "cannot have a maximum"),
        ([{**NOTE, "title": "x" * 121}], "questions.0.title", "at most 120 characters"),
        ([{**STYLE, "options": [{"key": "a"}]}], "questions.0.options", "needs 2 to 60 options"),
        ([{**STYLE, "options": [{"key": "a"}, {"key": "a"}]}], "questions.0.options.1.key", "occurs twice"),
        ([{**STYLE, "options": [{"key": "a"}, {"name": "b"}]}], "questions.0.options.1", "must be {key, title}"),
        ([{**COST, "minimum": float("nan")}], "questions.0.minimum", "must be a number"),
        ([{**COST, "maximum": -1}], "questions.0.maximum", "lower than its maximum"),
        ([{**QUALITY, "maximum": 100}], "questions.0.maximum", "at most 20 values"),
        ([{**QUALITY, "minimum": 0.5}], "questions.0.maximum", "whole numbers"),
    ],
)
def test_an_error_names_the_field_and_what_to_do(rows: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as error:
        parse_questions(rows)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("correct", True, (True, 1.0, " yes ")),
        ("errors", ["sum", "logic", "sum"], (["logic", "sum"], None, " logic sum ")),
        ("style", "bad", ("bad", None, " bad ")),
        ("quality", 4.0, (4, 4.0, " 4 ")),
        ("cost", 0.25, (0.25, 0.25, " 0.25 ")),
        ("cost", 1e20, (1e20, 1e20, " 1e+20 ")),
        ("cost", 2.0**53, (2.0**53, 2.0**53, " 9.00719925474099e+15 ")),
        ("note", " 你好\n there ", ("你好\n there", None, "你好\n there")),
    ],
)
def test_an_answer_is_stored_in_one_form(key: str, value: Any, stored: Any) -> None:
    (question,) = (question for question in parse_questions(ROWS) if question.key == key)
    parsed = question.parse_value(value)
    assert tuple(parsed) == stored and type(parsed.value) is type(stored[0])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("correct", "yes", "must be true or false"),
        ("correct", 1, "must be true or false"),
        ("errors", [], "a list of one or more of logic, sum"),
        ("errors", "sum", "a list of one or more"),
        ("errors", [["sum"]], "a list of one or more"),
        ("style", "ugly", "one of good, bad"),
        ("style", None, "one of good, bad"),
        ("quality", 6, "a whole number from 1 up to 5"),
        ("quality", 2.5, "a whole number"),
        ("quality", True, "a whole number"),
        ("cost", -1, "a number from 0"),
        ("cost", float("inf"), "a number from 0"),
        ("note", "  ", "a text that is not empty"),
        ("note", "a\x00", "invalid character"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(key: str, value: Any, message: str) -> None:
    (question,) = (question for question in parse_questions(ROWS) if question.key == key)
    with pytest.raises(InvalidInputError, match=message):
        question.parse_value(value)


@pytest.mark.parametrize(
    ("value", "is_accepted"),
    [(["sum", "gone"], True), ("sum", True), (["gone"], False), ("The sum is wrong.", False), (True, False)],
)
def test_a_stored_answer_to_several_choices_is_accepted_if_one_option_still_exists(
    value: Any, is_accepted: bool
) -> None:
    (question,) = parse_questions([ERRORS])
    assert question.accepts(value) == is_accepted
