"""What a judge's model answers: texts that the server refuses, thoughts, and invalid numbers."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutdeck.cli.rescore.instructions import (
    InvalidAnswerError,
    RubricInstructions,
    TemplateInstructions,
    build_rubric_instructions,
)

CORRECT: dict[str, Any] = {"key": "correct", "title": "Is it correct?", "kind": "yes-no", "required": True}
NOTES: dict[str, Any] = {"key": "notes", "title": "Notes", "kind": "text"}
COUNT: dict[str, Any] = {"key": "count", "title": "How many?", "kind": "number"}
TEMPLATE = TemplateInstructions("{response}")


def build_instructions(*questions: dict[str, Any]) -> RubricInstructions:
    return build_rubric_instructions({"questions": questions}, "", questions[0]["key"], "")


@pytest.mark.parametrize("notes", ['""', '" \\n "', "[]", "null", '"\\u0000"', '"\\ud800"'])
def test_an_empty_text_counts_as_no_answer(notes: str) -> None:
    text = f'{{"correct": true, "notes": {notes}}}'
    assert build_instructions(CORRECT, NOTES).read(text).answers == {"correct": True}
    with pytest.raises(InvalidAnswerError, match="did not answer notes"):
        build_instructions(CORRECT, {**NOTES, "required": True}).read(text)


def test_texts_have_no_characters_that_the_server_refuses() -> None:
    verdict = build_instructions(CORRECT, NOTES).read(
        '{"correct": 1, "notes": " a\\u0000b\\n\\ud800c", "rationale": "\\udfffd\\u0000"}'
    )
    assert (verdict.answers["notes"], verdict.rationale) == ("ab\nc", "d")
    assert (
        len(build_instructions(CORRECT, NOTES).read(f'{{"correct": 1, "notes": "{" " * 11_000}x"}}').answers["notes"])
        == 1
    )


@pytest.mark.parametrize(
    "text",
    [
        '<think>perhaps {"score": 0}, no</think>{"score": 1}',
        'The chat template wrote the first tag. {"score": 0}</think>\n{"score": 1}',
        '<think>{"score": 0}</think>again {"score": 0}</think>```json\n{"score": 1}\n```',
        '<think>{"score": 0}</think>{"score": 1, "rationale": "it never closes <think> with </think> {}"}',
        '{"score": 1, "rationale": "no <think> tag"}',
        "<think>0</think> 1",
    ],
)
def test_only_what_follows_the_thoughts_is_the_answer(text: str) -> None:
    assert TEMPLATE.read(text).value == 1.0


@pytest.mark.parametrize("text", ['<think>perhaps {"score": 0}', '<think>a</think> <think>{"score": 0}', "<think>"])
def test_thoughts_that_do_not_end_are_an_error(text: str) -> None:
    with pytest.raises(InvalidAnswerError, match="--max-tokens"):
        TEMPLATE.read(text)
    with pytest.raises(InvalidAnswerError, match="answered no score"):
        TEMPLATE.read('<think>{"score": 0}</think> I cannot say.')


def test_an_answer_that_was_cut_off_counts_if_it_is_complete() -> None:
    for text in ('I think of {"score": 0}, but', '{"score": 1, "rationale": "it', "0.", ""):
        with pytest.raises(InvalidAnswerError, match="--max-tokens"):
            TEMPLATE.read(text, is_cut=True)
    for text in (
        '{"score": 1}',
        '```json\n{"score": 1}\n```\nThe response',
        "1",
        '{"score": 0}</think>{"score": 1}\nMo',
    ):
        assert TEMPLATE.read(text, is_cut=True).value == 1.0
    with pytest.raises(InvalidAnswerError, match="--max-tokens"):
        build_instructions(CORRECT).read('It is {"correct": true}, but', is_cut=True)


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "1" * 5000, '"NaN"', "2e100", "[" * 100_000]
)
def test_invalid_numbers_are_an_error_of_the_sample(number: str) -> None:
    for instructions, text in (
        (build_instructions(COUNT), f'{{"count": {number}}}'),
        (build_instructions({**COUNT, "kind": "rating", "minimum": 1, "maximum": 5}), f'{{"count": {number}}}'),
        (TEMPLATE, f'{{"score": {number}}}'),
        (TEMPLATE, number),
    ):
        with pytest.raises(InvalidAnswerError, match="the model"):
            instructions.read(text)
